//! Every target for a fixed number of cases, and the driver itself.

use std::collections::BTreeSet;
use tests_fuzz::run::{Shape, Target, Until, input, run};
use tests_fuzz::targets;

#[test]
fn no_target_finds_anything_in_a_fixed_run() {
    for target in targets::all() {
        let cases = run(&target, 2026, Until::Cases(400)).unwrap_or_else(|finding| panic!("{finding}"));
        assert_eq!(cases, 400);
    }
}

#[test]
fn every_target_has_a_name_of_its_own_and_seeds() {
    let all = targets::all();
    let names: BTreeSet<&str> = all.iter().map(|target| target.name).collect();
    assert_eq!(names.len(), all.len());
    for target in &all {
        assert!(!target.seeds.is_empty(), "{} has no seeds", target.name);
    }
}

fn picky() -> Target {
    Target {
        name: "picky",
        shape: Shape::Bytes,
        seeds: vec![vec![0; 16]],
        decode: Box::new(|input| assert!(input.len() != 17, "seventeen")),
    }
}

#[test]
fn a_panicking_decoder_is_found_with_an_input_that_repeats_it() {
    let target = picky();
    let finding = run(&target, 1, Until::Cases(10_000)).expect_err("a finding");
    assert!(finding.what.contains("seventeen"), "{}", finding.what);
    assert_eq!(input(&target, finding.seed, finding.case), finding.input);
    assert_eq!(finding.input.len(), 17);
}
