//! Tests of packed values: each reads as it was written, and similar ones take little space.

use super::*;
use bytes::Bytes;
use proptest::prelude::*;

/// A value as a replica of a template has it.
fn replica(template: &str, number: usize) -> Value {
    let fields: Vec<String> = (0..40)
        .map(|field| {
            format!(
                r#""f:{template}{field}":{{".":{{}},"k:{field}":{}}}"#,
                field * 7919
            )
        })
        .collect();
    let uid = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    Bytes::from(format!(
        r#"{{"metadata":{{"name":"{template}-{number}","uid":"{uid:032x}","managedFields":[{}]}},"node":"node-{}"}}"#,
        fields.join(","),
        number % 50,
    ))
    .into()
}

fn steps(value: &Value) -> Option<usize> {
    value.packed_len()
}

#[test]
fn replicas_of_a_template_take_a_quarter_at_most_also_when_templates_change_in_turns() {
    let mut samples = Samples::default();
    let mut plain = 0;
    for number in 0..200 {
        for template in ["web", "db", "cache"] {
            let value = replica(template, number);
            let packed = samples.pack(&value, None);
            assert_eq!(packed, value);
            match steps(&packed) {
                Some(steps) => assert!(steps < value.len() / 4, "{steps} of {}", value.len()),
                None => plain += 1,
            }
        }
    }
    assert!(plain <= 3, "{plain} were not packed");
}

#[test]
fn a_value_is_packed_against_the_sample_of_the_one_that_it_replaces() {
    let mut samples = Samples::default();
    samples.pack(&replica("web", 0), None);
    let first = samples.pack(&replica("web", 1), None);
    for other in 0..SAMPLES {
        let mixed = (0..400).map(|at| (at * at + other * 31) % 10);
        let text: String = mixed.map(|digit| digit.to_string()).collect();
        samples.pack(&Value::from(text), None);
    }
    let next = samples.pack(&replica("web", 2), first.sample());
    assert!(steps(&next).unwrap() < next.len() / 10);
}

#[test]
fn what_resembles_nothing_stays_as_it_was_written() {
    let mut samples = Samples::default();
    let mut random = 7_u64;
    for _ in 0..10 {
        let bytes: Vec<u8> = (0..2_000)
            .map(|_| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                random.to_le_bytes()[7]
            })
            .collect();
        assert_eq!(steps(&samples.pack(&bytes.into(), None)), None);
    }
    assert_eq!(samples.0.len(), SAMPLES);
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"\"f:metadata\":{\"f:labels\":{\".\":{}}}".to_vec()),
        Just(vec![b'a'; 90]),
        Just((0..=255).collect::<Vec<u8>>()),
        proptest::collection::vec(any::<u8>(), 0..40),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn a_packed_value_reads_as_it_was_written(
        values in proptest::collection::vec(value(), 1..12), from in 0..3_000_usize, length in 0..3_000_usize,
    ) {
        let mut samples = Samples::default();
        let mut before: Option<Value> = None;
        for bytes in values {
            let value = Value::from(bytes.clone());
            let packed = samples.pack(&value, before.as_ref().and_then(Value::sample));
            prop_assert_eq!(packed.bytes(), &bytes[..]);
            prop_assert_eq!(packed.len(), bytes.len());
            let (mut part, end) = (Vec::new(), bytes.len().min(from + length));
            packed.put(from..from + length, &mut part);
            prop_assert_eq!(&part[..], bytes.get(from..end).unwrap_or_default());
            before = Some(packed);
        }
    }

    #[test]
    fn differences_from_any_sample_give_the_value(sample in value(), bytes in value()) {
        if let Some(packed) = Sample::new(sample.into()).differences(&bytes, bytes.len()) {
            prop_assert!(packed.unpacks_to(&bytes));
        }
    }
}
