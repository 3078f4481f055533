//! A good document is accepted, and each fault is refused with its own code.

use config_discovery::{
    Document, DocumentFault, Expected, LABEL, MAX_BYTES, MAX_LIFE, SKEW, Trust, check, pin_of,
};
use config_model::discovery::ClusterId;
use config_model::format::Pin;
use p256::ecdsa::signature::Signer as _;
use p256::ecdsa::{Signature, SigningKey, VerifyingKey};
use p256::pkcs8::EncodePublicKey as _;
use proptest::prelude::*;
use serde_json::{Value, json};

const NOW: u64 = 1_795_300_000;

fn key(seed: u8) -> SigningKey {
    SigningKey::from_slice(&[seed; 32]).expect("a scalar")
}

fn pin(key: &SigningKey) -> Pin {
    pin_of(
        VerifyingKey::from(key)
            .to_public_key_der()
            .expect("a key")
            .as_bytes(),
    )
}

fn id(digit: char) -> ClusterId {
    digit.to_string().repeat(32).parse().expect("an id")
}

fn document() -> Document {
    Document {
        cluster: id('a'),
        generation: 7,
        issued: NOW - 60,
        expires: NOW + 3600,
        endpoints: vec!["https://192.168.77.10:6443".parse().expect("an endpoint")],
        ca_pins: vec![Pin([3; 32])],
    }
}

fn accept(bytes: &[u8], change: impl FnOnce(&mut Expected<'_>)) -> Result<Document, DocumentFault> {
    let (cluster, pins) = (id('a'), [pin(&key(1))]);
    let mut expected = Expected {
        cluster: &cluster,
        trust: Trust::Pins(&pins),
        min_generation: 7,
        now: NOW,
    };
    change(&mut expected);
    check(bytes, &expected).map(|verified| verified.document().clone())
}

fn code(bytes: &[u8]) -> &'static str {
    accept(bytes, |_| {}).expect_err("it is refused").code()
}

/// Signs any bytes as a cluster does.
fn signed(document: &[u8], key: &SigningKey) -> Vec<u8> {
    use base64::Engine as _;
    let signature: Signature = key.sign(&[LABEL, document].concat());
    let text = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    let spki = VerifyingKey::from(key).to_public_key_der().expect("a key");
    let envelope = json!({"document": text(document), "key": text(spki.as_bytes()), "signature": text(&signature.to_bytes())});
    envelope.to_string().into_bytes()
}

fn raw() -> Value {
    json!({"version": 1, "cluster": "a".repeat(32), "generation": 7, "issued": NOW - 60, "expires": NOW + 3600,
        "endpoints": ["https://192.168.77.10:6443"], "caPins": [Pin([3; 32]).to_string()]})
}

fn with(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut raw = raw();
    change(&mut raw);
    signed(raw.to_string().as_bytes(), &key(1))
}

#[test]
fn a_good_document_is_accepted_and_says_what_was_signed() {
    let bytes = document().sign(&key(1)).expect("it signs");
    assert_eq!(accept(&bytes, |_| {}), Ok(document()));
    assert_eq!(
        accept(&with(|_| {}), |_| {}),
        Ok(document()),
        "the order of keys does not matter"
    );
    assert_eq!(
        accept(&document().sign(&key(2)).expect("it signs"), |e| e.trust =
            Trust::AnyKey),
        Ok(document())
    );
}

#[test]
fn each_reason_has_its_code() {
    let good = document().sign(&key(1)).expect("it signs");
    assert_eq!(code(&vec![b' '; MAX_BYTES + 1]), "TOO_LARGE");
    assert_eq!(code(b"{}"), "MALFORMED");
    assert_eq!(
        code(&document().sign(&key(2)).expect("it signs")),
        "PIN_UNKNOWN"
    );
    assert_eq!(code(&with(|raw| raw["version"] = 2.into())), "VERSION");
    let fault =
        |change: fn(&mut Expected<'_>)| accept(&good, change).expect_err("it is refused").code();
    assert_eq!(fault(|e| e.min_generation = 8), "GENERATION_BACK");
    assert_eq!(fault(|e| e.now = NOW - 61 - SKEW), "NOT_YET_VALID");
    assert_eq!(fault(|e| e.now = NOW + 3600), "EXPIRED");
    assert_eq!(fault(|e| e.trust = Trust::Pins(&[])), "PIN_UNKNOWN");
    let other = Document {
        cluster: id('b'),
        ..document()
    };
    assert_eq!(
        code(&other.sign(&key(1)).expect("it signs")),
        "OTHER_CLUSTER"
    );
    // Parts of two valid documents combined.
    let mut one: Value = serde_json::from_slice(&good).expect("JSON");
    let later = Document {
        generation: 8,
        ..document()
    }
    .sign(&key(1))
    .expect("it signs");
    let two: Value = serde_json::from_slice(&later).expect("JSON");
    one["document"] = two["document"].clone();
    assert_eq!(code(one.to_string().as_bytes()), "SIGNATURE");
    // A signature by the same key over the same bytes, made for another purpose.
    let bare: Signature = key(1).sign(raw().to_string().as_bytes());
    let mut spliced: Value = serde_json::from_slice(&with(|_| {})).expect("JSON");
    spliced["signature"] = encode(&bare.to_bytes()).into();
    assert_eq!(code(spliced.to_string().as_bytes()), "SIGNATURE");
    // Values that no signature has are well-formed but not a signature.
    for bytes in [[0; 64], [0xff; 64]] {
        spliced["signature"] = encode(&bytes).into();
        assert_eq!(code(spliced.to_string().as_bytes()), "SIGNATURE");
    }
    // The form is checked first: for a malformed document it does not matter who signed it.
    let foreign = document().sign(&key(2)).expect("it signs");
    for (field, bytes) in [
        ("signature", vec![1; 63]),
        ("key", vec![1; 91]),
        ("key", Vec::new()),
    ] {
        let mut formless: Value = serde_json::from_slice(&foreign).expect("JSON");
        formless[field] = encode(&bytes).into();
        assert_eq!(
            code(formless.to_string().as_bytes()),
            "MALFORMED",
            "{field}"
        );
    }
}

fn encode(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[test]
fn a_signed_document_in_another_form_is_malformed() {
    type Change = fn(&mut Value);
    let changes: [Change; 14] = [
        |raw| raw["cluster"] = "A".repeat(32).into(),
        |raw| raw["generation"] = (-1).into(),
        |raw| raw["generation"] = "7".into(),
        |raw| raw["expires"] = (NOW - 60).into(),
        |raw| raw["expires"] = (NOW - 60 + MAX_LIFE + 1).into(),
        |raw| raw["endpoints"] = json!([]),
        |raw| raw["endpoints"] = json!(["https://192.168.77.10"]),
        |raw| raw["endpoints"] = json!(["http://192.168.77.10:6443"]),
        |raw| raw["endpoints"] = json!(["https://a:1", "https://a:1"]),
        |raw| {
            raw["endpoints"] = Value::from(
                (1..=17)
                    .map(|n| format!("https://a:{n}"))
                    .collect::<Vec<_>>(),
            );
        },
        |raw| raw["caPins"] = json!([]),
        |raw| raw["caPins"] = json!(["03".repeat(32)]),
        |raw| raw["more"] = 1.into(),
        |raw| drop(raw.as_object_mut().map(|raw| raw.remove("issued"))),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        assert_eq!(code(&with(change)), "MALFORMED", "change {index}");
    }
    let twice = raw().to_string().replacen('{', "{\"generation\":9,", 1);
    assert_eq!(
        code(&signed(twice.as_bytes(), &key(1))),
        "MALFORMED",
        "a key twice"
    );
    assert_eq!(
        code(&signed(format!("{} 1", raw()).as_bytes(), &key(1))),
        "MALFORMED",
        "trailing bytes"
    );
}

#[test]
fn a_list_of_the_values_is_no_object() {
    let raw = raw();
    let values = |keys: &[&str]| {
        Value::from(keys.iter().map(|key| raw[*key].clone()).collect::<Vec<_>>()).to_string()
    };
    let keys = [
        "version",
        "cluster",
        "generation",
        "issued",
        "expires",
        "endpoints",
        "caPins",
    ];
    for keys in [&keys[..], &keys[..1]] {
        assert_eq!(
            code(&signed(values(keys).as_bytes(), &key(1))),
            "MALFORMED",
            "{keys:?}"
        );
    }
    assert_eq!(
        code(&signed(b"[2]", &key(1))),
        "MALFORMED",
        "not another version"
    );
    let envelope: Value = serde_json::from_slice(&with(|_| {})).expect("JSON");
    let listed = json!([envelope["document"], envelope["key"], envelope["signature"]]).to_string();
    assert_eq!(code(listed.as_bytes()), "MALFORMED");
    assert_eq!(code(format!(" {listed}").as_bytes()), "MALFORMED");
    assert!(
        accept(format!("\r\n\t {envelope}").as_bytes(), |_| {}).is_ok(),
        "spaces may stand before an object"
    );
}

#[test]
fn no_key_of_an_object_comes_twice() {
    let whole = raw();
    for (name, value) in whole.as_object().expect("an object") {
        let twice = whole
            .to_string()
            .replacen('{', &format!("{{\"{name}\":{value},"), 1);
        assert_eq!(
            code(&signed(twice.as_bytes(), &key(1))),
            "MALFORMED",
            "{name}"
        );
    }
    let envelope: Value = serde_json::from_slice(&with(|_| {})).expect("JSON");
    for (name, value) in envelope.as_object().expect("an object") {
        let twice = envelope
            .to_string()
            .replacen('{', &format!("{{\"{name}\":{value},"), 1);
        assert_eq!(code(twice.as_bytes()), "MALFORMED", "{name}");
    }
}

#[test]
fn a_document_that_could_never_be_accepted_is_not_signed() {
    assert!(
        Document {
            endpoints: Vec::new(),
            ..document()
        }
        .sign(&key(1))
        .is_err()
    );
    assert!(
        Document {
            expires: NOW - 60,
            ..document()
        }
        .sign(&key(1))
        .is_err()
    );
}

#[test]
fn the_largest_document_fits() {
    let host = [
        ["a".repeat(63), "b".repeat(63), "c".repeat(63)].join("."),
        "d".repeat(59),
    ]
    .join(".");
    let endpoints = (1..=16).map(|n| {
        format!("https://{host}:{}", 65_000 + n)
            .parse()
            .expect("an endpoint")
    });
    let ca_pins = (0..16).map(|n| Pin([n; 32])).collect();
    let largest = Document {
        generation: u64::MAX,
        endpoints: endpoints.collect(),
        ca_pins,
        ..document()
    };
    let bytes = largest.sign(&key(1)).expect("it fits");
    assert_eq!(accept(&bytes, |_| {}), Ok(largest));
}

proptest! {
    /// No bit of a signed document can be changed.
    #[test]
    fn any_flipped_bit_is_refused(at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let mut bytes = document().sign(&key(1)).expect("it signs");
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let refused = accept(&bytes, |_| {}).is_err();
        prop_assert!(refused, "byte {at}, bit {bit}");
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let refused = accept(&bytes, |_| {}).is_err();
        prop_assert!(refused);
    }

    /// Accepted exactly from `issued` minus the skew until before `expires`, and from the lowest
    /// generation on.
    #[test]
    fn time_and_generation_are_exact(now in NOW - 1000..NOW + 4000, generation in 0..20_u64, least in 0..20_u64) {
        let bytes = Document { generation, ..document() }.sign(&key(1)).expect("it signs");
        let good = generation >= least && now + SKEW >= NOW - 60 && now < NOW + 3600;
        let outcome = accept(&bytes, |e| { e.now = now; e.min_generation = least; });
        prop_assert_eq!(outcome.is_ok(), good);
    }
}
