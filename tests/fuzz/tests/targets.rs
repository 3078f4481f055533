//! Every target for a fixed number of cases, and the driver itself.

use std::collections::BTreeSet;
use tests_fuzz::run::{Shape, Target, Until, input, keep, kept, run};
use tests_fuzz::targets;

#[test]
fn no_target_finds_anything_in_a_fixed_run() {
    for target in targets::all().expect("the corpus") {
        let cases =
            run(&target, 2026, Until::Cases(400)).unwrap_or_else(|finding| panic!("{finding}"));
        assert_eq!(cases, 400);
    }
}

#[test]
fn every_target_has_a_name_of_its_own_and_seeds() {
    let all = targets::all().expect("the corpus");
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
    // A kept find is the first case of a later run with any seed.
    let corpus = tempfile::tempdir().expect("a folder");
    assert!(
        kept(corpus.path(), "picky")
            .expect("no folder is no fault")
            .is_empty()
    );
    keep(corpus.path(), &finding).expect("kept");
    let seeds = kept(corpus.path(), "picky").expect("read");
    let again = run(&Target { seeds, ..target }, 2, Until::Cases(1)).expect_err("the same finding");
    assert_eq!((again.case, &again.input), (0, &finding.input));
}
