//! Messages can be read in one way only: no list stands for an object, no field comes twice, and
//! nothing written is left unread.

use config_attest::bootstrap::{AdminStatement, ProvedMaster};
use config_attest::release::Manifest;
use config_kube::machine::ProvenConfig;
use config_protocol::wire::{
    Blob, BootstrapAdmit, BootstrapAdmitted, BootstrapHello, Certificates, Challenge, Claims, Der,
    Evidence, Hello, Proof, code_of, parse,
};
use config_protocol::{Code, Purpose, unproven};
use config_tpm::Digest;
use config_tpm::boot::ExpectedEvent;
use config_verdicts::{Entry, FORMAT, Kind, Record, Segment};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::ops::Range;
use tests_machines::{EkKind, SoftKeyed, World};

/// Reads bytes as one kind of message and says what was read.
type Reader = fn(&[u8]) -> serde_json::Result<Value>;

/// A kind of message, a good one, and how it is read.
struct Message {
    name: &'static str,
    text: String,
    read: Reader,
}

fn read<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<Value> {
    parse::<T>(bytes).and_then(|message| serde_json::to_value(&message))
}

fn message<T: Serialize + DeserializeOwned>(message: &T) -> Message {
    let name = std::any::type_name::<T>();
    Message {
        name,
        text: serde_json::to_string(message).expect("JSON"),
        read: read::<T>,
    }
}

fn manifest() -> Manifest {
    let text = include_str!("../../attest/vectors/guest-manifest.json");
    let mut manifest = Manifest::parse(text).expect("the manifest of a real build");
    // One element of each list is enough.
    manifest.parts.truncate(1);
    manifest.packages.truncate(1);
    manifest.executables.truncate(1);
    let event = ExpectedEvent {
        kind: 13,
        digest: Digest::of(b"event"),
        note: "one".to_owned(),
    };
    manifest.boots[0].events.insert(4, vec![event]);
    manifest
}

fn statement() -> AdminStatement {
    let config = Some(ProvenConfig {
        source: "nocloud".to_owned(),
        digest: Digest::ZERO.to_text(),
    });
    let pinned_pcrs = [("0".to_owned(), Digest::ZERO.to_hex())].into();
    let proved = ProvedMaster {
        config,
        pinned_pcrs,
        ..ProvedMaster::default()
    };
    AdminStatement {
        addresses: vec!["192.168.77.10".to_owned()],
        proved: Some(proved),
        ..AdminStatement::default()
    }
}

fn with_tpm() -> Vec<Message> {
    let mut world = World::new();
    let machine = world.machine("worker-1", "192.168.77.11", EkKind::P256);
    let hello = machine.hello();
    let challenge = world.challenge(&hello.0).expect("a challenge");
    let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
    let first = BootstrapHello {
        protocol: "pratique bootstrap/v1".to_owned(),
        cluster: "lab".to_owned(),
        root: Der::new(*b"root").expect("short"),
        keys: Some(hello.0.keys.clone()),
        claims: hello.0.claims.clone(),
    };
    vec![
        message(&hello.0),
        message(&challenge),
        message(&evidence.proof),
        message(&evidence),
        message(&first),
    ]
}

fn without_tpm() -> Vec<Message> {
    let mut world = World::new();
    world.rule.policy = config_kube::PolicyName::Queue;
    world.rule.insecure_no_tpm = true;
    let machine = SoftKeyed::new("edge-1", "192.168.77.31", "1");
    let hello = machine.hello();
    let challenge = world.unproven_challenge(&hello.0).expect("a challenge");
    let evidence = machine.evidence(Purpose::Join, &hello, &challenge, &world.channel);
    vec![message(&hello.0), message(&challenge), message(&evidence)]
}

fn messages() -> Vec<Message> {
    let text = |text: &str| text.to_owned();
    let certificates = Certificates {
        node_name: text("worker-1"),
        client: text("PEM"),
        serving: text("PEM"),
        roots: text("PEM"),
        not_after: 1,
        renew_after_seconds: 1,
    };
    let admit = BootstrapAdmit {
        admin_csr: Der::new(*b"request").expect("short"),
        statement: Blob::new(*b"{}").expect("short"),
        signature: Blob::new(*b"signature").expect("short"),
    };
    let admitted = BootstrapAdmitted {
        certificate: text("PEM"),
        roots: text("PEM"),
        ca_pin: text("sha256:"),
    };
    let segment = Segment {
        format: text(FORMAT),
        cluster: text("lab"),
        time: text("2026-01-01T00:00:00Z"),
        next: 1,
        previous: Digest::ZERO,
        certificate: text("AAAA"),
        root: text("AAAA"),
    };
    let record = Record {
        number: 1,
        previous: Digest::ZERO,
        time: text("2026-01-01T00:00:00Z"),
        verdict: Entry {
            count: Some(3),
            ..Entry::of(Kind::Renewed, "worker-1")
        },
    };
    let mut all = with_tpm();
    all.extend(without_tpm());
    all.extend([
        message(&certificates),
        message(&admit),
        message(&admitted),
        message(&statement()),
    ]);
    all.extend([message(&segment), message(&record), message(&manifest())]);
    all
}

/// An object in a text: where it stands, and where each field and its value begin and end.
struct Object {
    whole: Range<usize>,
    fields: Vec<Field>,
    /// Begin of the field, and of its value, that is being read.
    open: (usize, usize),
}

struct Field {
    whole: Range<usize>,
    value: Range<usize>,
}

impl Object {
    fn close_field(&mut self, at: usize) {
        let (begin, value) = self.open;
        self.fields.push(Field {
            whole: begin..at,
            value: value..at,
        });
        self.open = (at + 1, at + 1);
    }
}

/// Every object of a text without spaces and escapes.
fn objects(text: &str) -> Vec<Object> {
    assert!(!text.contains('\\'));
    let (mut found, mut open, mut quoted) = (Vec::new(), Vec::<Option<Object>>::new(), false);
    for (at, byte) in text.bytes().enumerate() {
        quoted ^= byte == b'"';
        match byte {
            _ if quoted => {}
            b'{' => open.push(Some(Object {
                whole: at..at,
                fields: Vec::new(),
                open: (at + 1, at + 1),
            })),
            b'[' => open.push(None),
            b']' => drop(open.pop()),
            b'}' => {
                let mut object = open.pop().flatten().expect("an open object");
                object.close_field(at);
                object.whole.end = at + 1;
                found.push(object);
            }
            b':' => {
                open.last_mut()
                    .and_then(Option::as_mut)
                    .expect("an object")
                    .open
                    .1 = at + 1;
            }
            b',' => {
                if let Some(Some(object)) = open.last_mut() {
                    object.close_field(at);
                }
            }
            _ => {}
        }
    }
    found
}

fn malformed(message: &Message, changed: &str) {
    match (message.read)(changed.as_bytes()) {
        Ok(_) => unreachable!("{} is taken: {changed}", message.name),
        Err(error) => assert_eq!(
            code_of(&error),
            Code::Malformed,
            "{}: {error}",
            message.name
        ),
    }
}

#[test]
fn every_message_parses_to_what_was_written() {
    for message in messages() {
        let read = (message.read)(message.text.as_bytes()).expect(message.name);
        assert_eq!(
            read,
            serde_json::from_str::<Value>(&message.text).expect("JSON"),
            "{}",
            message.name
        );
        assert!(!objects(&message.text).is_empty());
    }
}

#[test]
fn captured_exchanges_parse() {
    for text in [
        include_str!("../../attest/vectors/swtpm-rsa-2048.json"),
        include_str!("../../attest/vectors/swtpm-p-384.json"),
    ] {
        let vector: Value = serde_json::from_str(text).expect("a vector");
        parse::<Hello>(vector["hello"].to_string().as_bytes()).expect("the hello");
        parse::<Challenge>(vector["challenge"].to_string().as_bytes()).expect("the challenge");
        parse::<Evidence>(vector["evidence"].to_string().as_bytes()).expect("the evidence");
    }
}

/// A list in the order of the type's fields, which serde's derived types accept as the object, and
/// an empty list.
#[test]
fn no_message_takes_a_list_for_an_object() {
    for message in messages() {
        for Object { whole, fields, .. } in objects(&message.text) {
            let values: Vec<&str> = fields
                .iter()
                .map(|field| &message.text[field.value.clone()])
                .collect();
            for list in [values.join(","), String::new()] {
                let (before, after) = (&message.text[..whole.start], &message.text[whole.end..]);
                malformed(&message, &format!("{before}[{list}]{after}"));
            }
        }
    }
    assert!(parse::<Claims>(b"[]").is_err() && parse::<Claims>(b"{}").is_ok());
}

#[test]
fn no_message_takes_a_list_for_a_single_value() {
    for message in messages() {
        for field in objects(&message.text)
            .into_iter()
            .flat_map(|object| object.fields)
        {
            let (before, after) = (
                &message.text[..field.value.start],
                &message.text[field.value.end..],
            );
            malformed(
                &message,
                &format!("{before}[{}]{after}", &message.text[field.value]),
            );
        }
    }
}

/// Absent fields are left out, never `null`; only the additional fields of a configuration event
/// may have any value.
#[test]
fn no_message_takes_a_null() {
    for message in messages() {
        for field in objects(&message.text)
            .into_iter()
            .flat_map(|object| object.fields)
        {
            let (before, after) = (
                &message.text[..field.value.start],
                &message.text[field.value.end..],
            );
            malformed(&message, &format!("{before}null{after}"));
        }
    }
    let hello = with_tpm().remove(0);
    malformed(
        &hello,
        &hello
            .text
            .replacen("\"keys\":{", "\"keys\":{\"ekCertificate\":null,", 1),
    );
    let evidence = with_tpm().remove(3);
    let open = evidence
        .text
        .replacen("\"configEvent\":{", "\"configEvent\":{\"note\":null,", 1);
    assert!(open != evidence.text && (evidence.read)(open.as_bytes()).is_ok());
}

#[test]
fn no_field_and_no_register_comes_twice_in_any_message() {
    for message in messages() {
        for field in objects(&message.text)
            .into_iter()
            .flat_map(|object| object.fields)
        {
            let (before, after) = message.text.split_at(field.whole.start);
            malformed(
                &message,
                &format!("{before}{},{after}", &message.text[field.whole]),
            );
        }
    }
}

#[test]
fn a_key_is_the_same_however_it_is_written() {
    let proof = with_tpm().remove(2);
    let zero = Digest::ZERO;
    let with = |key: &str| {
        proof.text.replacen(
            "\"pcrs\":{",
            &format!("\"pcrs\":{{\"{key}\":\"{zero}\","),
            1,
        )
    };
    for key in ["0", "\\u0030", "00", "-0", "+0", " 0", "0.0", "0e0"] {
        malformed(&proof, &with(key));
    }
    let twice = proof
        .text
        .replacen('{', &format!("{{\"m\\u0061c\":\"{zero}\","), 1);
    malformed(&proof, &twice);
    assert!(
        (proof.read)(with("1").as_bytes()).is_ok(),
        "the verifier names a register that was not asked for"
    );
}

#[test]
fn nesting_is_bounded() {
    for (begin, end) in [
        ("[", "]"),
        ("{\"a\":", "}"),
        ("{\"pcrs\":[", "]}"),
        ("{\"configEvent\":[", "]}"),
    ] {
        for depth in [17, 200, 20_000] {
            let text = [begin.repeat(depth), "1".to_owned(), end.repeat(depth)].concat();
            for bytes in [text.as_str(), &begin.repeat(depth)] {
                let error = parse::<Value>(bytes.as_bytes()).expect_err("deep");
                assert_eq!(code_of(&error), Code::Malformed);
            }
        }
    }
    let nested = |levels: usize| format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
    assert!(
        parse::<Value>(nested(16).as_bytes()).is_ok()
            && parse::<Value>(nested(17).as_bytes()).is_err()
    );
}

#[test]
fn only_the_configuration_event_may_have_unknown_fields_each_once() {
    let proof = with_tpm().remove(2);
    let with = |fields: &str| {
        let opening = "\"configEvent\":{";
        proof
            .text
            .replacen(opening, &format!("{opening}{fields},"), 1)
    };
    let good = [
        r#""measured":true"#,
        r#""more":[1,[2],{"a":[]}],"configEvent":{"pcr":[]}"#,
        r#""a":null,"b":1.5"#,
    ];
    for fields in good {
        assert!(parse::<Proof>(with(fields).as_bytes()).is_ok(), "{fields}");
    }
    for fields in [
        r#""more":1,"more":1"#,
        r#""more":{"a":1,"a":1}"#,
        r#""label":"smbios""#,
    ] {
        malformed(&proof, &with(fields));
    }
    malformed(&proof, &proof.text.replacen('{', "{\"more\":1,", 1));
}

/// The label is for people: a wrong one is refused before anything counts against a machine.
#[test]
fn a_wrong_label_is_malformed_and_has_no_consequence() {
    let proof = with_tpm().remove(2);
    let with = |label: &str| {
        proof
            .text
            .replacen("\"nocloud\"", &json!(label).to_string(), 1)
    };
    for label in ["a", "smbios", &"x".repeat(64)] {
        assert!((proof.read)(with(label).as_bytes()).is_ok(), "{label}");
    }
    for label in [
        "",
        "no cloud",
        "no\ncloud",
        "nöcloud",
        "\u{7f}",
        &"x".repeat(65),
    ] {
        malformed(&proof, &with(label));
    }
}

/// An error that quotes the text of another error is not taken for it.
#[test]
fn only_a_field_over_its_limit_is_too_large() {
    let hello = with_tpm().remove(0);
    let long = hello
        .text
        .replacen("\"ek\":\"", &format!("\"ek\":\"{}", "AAAA".repeat(1024)), 1);
    let error = (hello.read)(long.as_bytes()).expect_err("too long");
    assert_eq!(code_of(&error), Code::TooLarge, "{error}");
    let (words, _) = error
        .to_string()
        .split_once(':')
        .map(|(words, rest)| (words.to_owned(), rest.to_owned()))
        .expect("words");
    malformed(
        &hello,
        &hello.text.replacen('{', &format!("{{\"{words}\":1,"), 1),
    );
    malformed(
        &hello,
        &hello
            .text
            .replacen("\"csrHash\":\"", &format!("\"csrHash\":\"{words}"), 1),
    );
    malformed(&hello, &format!("\"{words}\""));
    malformed(&hello, &words);
}

proptest! {
    /// However a message is changed, it is refused or every part of it is read.
    #[test]
    fn a_changed_message_is_refused_or_read_whole(
        of in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in 0..3_usize,
    ) {
        thread_local!(static MESSAGES: Vec<Message> = messages());
        MESSAGES.with(|messages| {
            let message = of.get(messages);
            let mut bytes = message.text.clone().into_bytes();
            let at = at.index(bytes.len());
            bytes.splice(at..(at + cut).min(message.text.len()), [byte]);
            if let Ok(read) = (message.read)(&bytes) {
                prop_assert_eq!(read, serde_json::from_slice::<Value>(&bytes).expect("JSON"));
            }
            Ok(())
        })?;
    }

    #[test]
    fn any_bytes_are_answered(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(parse::<unproven::Hello>(&bytes).is_err());
        prop_assert!(parse::<Evidence>(&bytes).is_err());
    }
}
