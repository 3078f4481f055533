//! WIRE.md matches the code, and the golden vector is what the code signs.

use config_discovery::{
    Document, DocumentFault, Expected, LABEL, MAX_BYTES, MAX_LIFE, MAX_LIST, SKEW, Trust, check,
    pin_of,
};
use config_model::format::Pin;
use p256::ecdsa::{SigningKey, VerifyingKey};
use p256::pkcs8::{DecodePrivateKey as _, EncodePublicKey as _};

const WIRE: &str = include_str!("../WIRE.md");
const KEY: &str = include_str!("../vectors/key.pem");
const SIGNED: &str = include_str!("../vectors/signed.json");

#[test]
fn every_code_and_limit_is_in_the_document() {
    for code in DocumentFault::CODES {
        assert!(WIRE.contains(&format!("| `{code}` |")), "{code}");
    }
    assert_eq!(
        (LABEL, MAX_BYTES, MAX_LIST, MAX_LIFE, SKEW),
        (&b"pratique discovery/v1\0"[..], 16_384, 16, 2_678_400, 300)
    );
    for text in [
        "`pratique discovery/v1` and a zero byte",
        "16,384 bytes",
        "1 to 16",
        "2,678,400 s",
        "300 s",
    ] {
        assert!(WIRE.contains(text), "{text}");
    }
}

/// The signature in the vector was made by this code and verified by OpenSSL.
#[test]
fn the_golden_vector_is_what_is_signed_and_accepted() {
    let key = SigningKey::from_pkcs8_pem(KEY).expect("the vector's key");
    let document = Document {
        cluster: "0123456789abcdef0123456789abcdef".parse().expect("an id"),
        generation: 1_795_300_000,
        issued: 1_795_300_000,
        expires: 1_795_904_800,
        endpoints: ["https://192.168.77.10:6443", "https://[fd00::10]:6443"]
            .map(|text| text.parse().expect("an endpoint"))
            .to_vec(),
        ca_pins: vec![Pin([0x0a; 32])],
    };
    let bytes = document.sign(&key).expect("it signs");
    assert_eq!(String::from_utf8_lossy(&bytes), SIGNED.trim_end());
    let pins = [pin_of(
        VerifyingKey::from(&key)
            .to_public_key_der()
            .expect("a key")
            .as_bytes(),
    )];
    assert!(WIRE.contains(&pins[0].to_string()), "{}", pins[0]);
    let cluster = document.cluster.clone();
    let expected = Expected {
        cluster: &cluster,
        trust: Trust::Pins(&pins),
        min_generation: 1,
        now: 1_795_300_001,
    };
    let verified = check(SIGNED.trim_end().as_bytes(), &expected).expect("it is good");
    assert_eq!((verified.document(), verified.key()), (&document, pins[0]));
}
