//! Tests of the choice of a volume for a claim: each rule of upstream, and the order of preference.

use super::*;
use crate::volume::ClaimRef;
use config_kube::Amount;
use config_kube::k8s_openapi::api::core::v1::NodeSelector;
use proptest::prelude::*;
use serde_json::{Value, json};

const GIB: i64 = 1 << 30;

fn volume(size: i64, modes: &[&str]) -> Volume {
    Volume {
        size: Amount::units(size),
        modes: modes.iter().map(|mode| (*mode).to_owned()).collect(),
        phase: "Available".to_owned(),
        class: "c".to_owned(),
        ..Volume::default()
    }
}

fn claim(size: i64, modes: &[&str]) -> Claim {
    Claim {
        uid: "uid".to_owned(),
        size: Amount::units(size),
        modes: modes.iter().map(|mode| (*mode).to_owned()).collect(),
        class: Some("c".to_owned()),
        ..Claim::default()
    }
}

fn key() -> Key {
    Key::new("ns", "data")
}

fn kept_for(name: &str, uid: &str) -> ClaimRef {
    ClaimRef {
        key: Key::new("ns", name),
        uid: uid.to_owned(),
    }
}

fn chosen<'v>(
    claim: &Claim,
    volumes: &'v [(&'v str, Volume)],
    from: ReachableFrom<'_>,
) -> Option<&'v str> {
    let all = volumes.iter().map(|(name, volume)| (*name, volume));
    best(&key(), claim, all, from)
}

/// The claim of each case, the one existing volume, and whether upstream binds it
/// (`FindMatchingVolume` and the binder's access modes).
#[test]
fn a_volume_is_taken_exactly_where_upstream_takes_it() {
    type Change = fn(&mut Claim, &mut Volume);
    let cases: [(&str, Change, bool); 20] = [
        ("equal", |_, _| {}, true),
        ("larger", |_, v| v.size = Amount::units(9 * GIB), true),
        ("smaller", |_, v| v.size = Amount::units(GIB - 1), false),
        (
            "more modes",
            |_, v| v.modes.push("ReadWriteMany".into()),
            true,
        ),
        (
            "another mode",
            |_, v| v.modes = vec!["ReadWriteMany".into()],
            false,
        ),
        (
            "two modes",
            |c, _| c.modes.push("ReadOnlyMany".into()),
            false,
        ),
        ("another class", |_, v| v.class = "d".into(), false),
        (
            "no class",
            |c, v| (c.class, v.class) = (None, String::new()),
            true,
        ),
        (
            "empty class",
            |c, v| (c.class, v.class) = (Some(String::new()), String::new()),
            true,
        ),
        ("class asked, none there", |_, v| v.class.clear(), false),
        ("block volume", |_, v| v.block = true, false),
        ("both block", |c, v| (c.block, v.block) = (true, true), true),
        ("leaving", |_, v| v.leaving = true, false),
        ("released", |_, v| v.phase = "Released".into(), false),
        ("pending", |_, v| v.phase = "Pending".into(), false),
        (
            "kept for it",
            |_, v| v.claim = Some(kept_for("data", "")),
            true,
        ),
        (
            "kept for it by UID, other class",
            |_, v| (v.claim, v.class) = (Some(kept_for("data", "uid")), "d".into()),
            true,
        ),
        (
            "kept for an older one",
            |_, v| v.claim = Some(kept_for("data", "old")),
            false,
        ),
        (
            "kept for another",
            |_, v| v.claim = Some(kept_for("other", "")),
            false,
        ),
        (
            "kept for it, too small",
            |_, v| (v.claim, v.size) = (Some(kept_for("data", "")), Amount::units(1)),
            false,
        ),
    ];
    for (name, change, taken) in cases {
        let mut claim = claim(GIB, &["ReadWriteOnce"]);
        let mut volume = volume(GIB, &["ReadWriteOnce"]);
        change(&mut claim, &mut volume);
        let volumes = [("v", volume)];
        assert_eq!(
            chosen(&claim, &volumes, ReachableFrom::Anywhere).is_some(),
            taken,
            "{name}"
        );
    }
}

#[test]
fn labels_are_those_that_the_claim_selects() {
    let with = |selector: Value| {
        let mut claim = claim(GIB, &["ReadWriteOnce"]);
        claim.selector = Some(serde_json::from_value(selector).unwrap());
        let mut volume = volume(GIB, &["ReadWriteOnce"]);
        volume.labels = [("tier".to_owned(), "fast".to_owned())].into();
        chosen(&claim, &[("v", volume)], ReachableFrom::Anywhere).is_some()
    };
    assert!(with(json!({"matchLabels": {"tier": "fast"}})));
    assert!(!with(json!({"matchLabels": {"tier": "slow"}})));
    assert!(!with(
        json!({"matchExpressions": [{"key": "zone", "operator": "Exists"}]})
    ));
}

#[test]
fn of_several_the_one_with_the_fewest_modes_and_then_the_smallest_is_taken() {
    let volumes = [
        (
            "small-many",
            volume(GIB, &["ReadWriteOnce", "ReadOnlyMany"]),
        ),
        ("large", volume(5 * GIB, &["ReadWriteOnce"])),
        ("fits", volume(2 * GIB, &["ReadWriteOnce"])),
        ("fits-too", volume(2 * GIB, &["ReadWriteOnce"])),
    ];
    let claim = claim(GIB, &["ReadWriteOnce"]);
    assert_eq!(
        chosen(&claim, &volumes, ReachableFrom::Anywhere),
        Some("fits")
    );
}

#[test]
fn a_claim_that_waits_gets_what_is_kept_for_it_and_what_its_node_reaches() {
    let affinity = |node: &str| -> Option<NodeSelector> {
        let need = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
        serde_json::from_value(json!({"nodeSelectorTerms": [{"matchExpressions": [need]}]}))
            .unwrap()
    };
    let labels = [("kubernetes.io/hostname".to_owned(), "b".to_owned())].into();
    let claim = claim(GIB, &["ReadWriteOnce"]);
    let on = |node: &str| Volume {
        affinity: affinity(node),
        ..volume(GIB, &["ReadWriteOnce"])
    };
    let volumes = [("va", on("a")), ("vb", on("b"))];
    assert_eq!(chosen(&claim, &volumes, ReachableFrom::Kept), None);
    assert_eq!(
        chosen(&claim, &volumes, ReachableFrom::Node("b", &labels)),
        Some("vb")
    );
    let kept = [
        ("vb", on("b")),
        (
            "va",
            Volume {
                claim: Some(kept_for("data", "")),
                ..on("a")
            },
        ),
    ];
    assert_eq!(chosen(&claim, &kept, ReachableFrom::Kept), Some("va"));
    assert_eq!(
        chosen(&claim, &kept, ReachableFrom::Node("b", &labels)),
        None,
        "it is kept elsewhere"
    );
}

#[test]
fn a_volume_that_is_asked_for_by_name_is_refused_in_upstreams_words() {
    let claim = claim(GIB, &["ReadWriteOnce"]);
    assert_eq!(fault(&claim, &volume(GIB, &["ReadWriteOnce"])), None);
    assert_eq!(
        fault(&claim, &volume(1, &["ReadWriteOnce"])),
        Some("requested PV is too small")
    );
    assert_eq!(
        fault(&claim, &volume(GIB, &["ReadOnlyMany"])),
        Some("incompatible accessMode")
    );
    let block = Volume {
        block: true,
        ..volume(GIB, &["ReadWriteOnce"])
    };
    assert_eq!(fault(&claim, &block), Some("incompatible volumeMode"));
    let class = Volume {
        class: "d".into(),
        ..volume(GIB, &["ReadWriteOnce"])
    };
    assert_eq!(
        fault(&claim, &class),
        Some("storageClassName does not match")
    );
}

proptest! {
    /// Invariants: the chosen volume fits, is bound to no other claim, and there is no smaller one
    /// with the same modes.
    #[test]
    fn a_chosen_volume_fits_and_is_not_bound_to_another_claim(
        sizes in prop::collection::vec((1..9_i64, 0..4_usize, 0..3_usize), 0..12),
        wanted in 1..9_i64,
    ) {
        let all = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"];
        let names: Vec<String> = (0..sizes.len()).map(|number| format!("v{number}")).collect();
        let volumes: Vec<(&str, Volume)> = names.iter().zip(&sizes).map(|(name, (size, modes, owner))| {
            let claim = match owner { 0 => None, 1 => Some(kept_for("other", "x")), _ => Some(kept_for("data", "old")) };
            (name.as_str(), Volume { claim, ..volume(*size, &all[..*modes]) })
        }).collect();
        let claim = claim(wanted, &["ReadWriteOnce"]);
        let fits = |volume: &Volume| volume.claim.is_none() && fault(&claim, volume).is_none();
        match chosen(&claim, &volumes, ReachableFrom::Anywhere) {
            None => prop_assert!(!volumes.iter().any(|(_, volume)| fits(volume))),
            Some(name) => {
                let taken = &volumes.iter().find(|(own, _)| *own == name).unwrap().1;
                prop_assert!(fits(taken));
                let rank = |volume: &Volume| (volume.modes.len(), volume.size);
                let better = volumes.iter().any(|(_, other)| fits(other) && rank(other) < rank(taken));
                prop_assert!(!better);
            }
        }
    }
}
