//! The garbage collector in a simulated API: the results of its plans for any graph of owners.

#![allow(clippy::panic, reason = "a test may stop at the first surprise")]

use master_client::{Meta, OwnerRef};
use master_control_cluster::garbage::{Action, Graph};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// An object of the world: its owners, each with whether it is blocked, and what is known of its
/// end.
#[derive(Debug, Clone, Default)]
struct Thing {
    owners: Vec<(usize, bool)>,
    deleting: bool,
    finalizers: BTreeSet<&'static str>,
}

/// A world that behaves as the API server does: it deletes objects without finalizers, and passes
/// every change to the graph.
#[derive(Debug, Clone, Default)]
struct World {
    things: BTreeMap<usize, Thing>,
    graph: Graph,
    /// In which order things went.
    gone: Vec<usize>,
}

fn uid(number: usize) -> String {
    format!("00000000-0000-4000-8000-{number:012x}")
}

fn number(uid: &str) -> usize {
    usize::from_str_radix(&uid[24..], 16).expect("a UID of this world")
}

fn meta(number: usize, thing: &Thing) -> Meta {
    let owner = |(owner, block): &(usize, bool)| OwnerRef {
        api_version: "v1".to_owned(),
        kind: "Thing".to_owned(),
        name: owner.to_string(),
        uid: uid(*owner),
        block: *block,
    };
    Meta {
        name: number.to_string(),
        namespace: "a".to_owned(),
        uid: uid(number),
        deletion_timestamp: thing.deleting.then(|| "2026-01-01T00:00:00Z".to_owned()),
        finalizers: thing
            .finalizers
            .iter()
            .map(|name| (*name).to_owned())
            .collect(),
        owner_references: thing.owners.iter().map(owner).collect(),
        ..Meta::default()
    }
}

impl World {
    fn put(&mut self, number: usize, thing: Thing) {
        if thing.deleting && thing.finalizers.is_empty() {
            self.graph.gone(&meta(number, &thing).uid);
            self.things.remove(&number);
            self.gone.push(number);
        } else {
            self.graph.set(0, &meta(number, &thing));
            self.things.insert(number, thing);
        }
    }

    fn delete(&mut self, number: usize, policy: &str) {
        let Some(mut thing) = self.things.get(&number).cloned() else {
            return;
        };
        match policy {
            "Foreground" => drop(thing.finalizers.insert("foregroundDeletion")),
            "Orphan" => drop(thing.finalizers.insert("orphan")),
            _ => {}
        }
        thing.deleting = true;
        self.put(number, thing);
    }

    fn release(&mut self, number: usize, owners: &[usize]) {
        let Some(mut thing) = self.things.get(&number).cloned() else {
            return;
        };
        thing.owners.retain(|(owner, _)| !owners.contains(owner));
        self.put(number, thing);
    }

    fn finish(&mut self, number: usize, finalizer: &str) {
        let Some(mut thing) = self.things.get(&number).cloned() else {
            return;
        };
        thing.finalizers.retain(|own| *own != finalizer);
        self.put(number, thing);
    }

    /// Whether a thing has an owner that is there and isn't waiting for it to go.
    fn is_held(&self, number: usize) -> bool {
        let waits =
            |thing: &Thing| thing.deleting && thing.finalizers.contains("foregroundDeletion");
        let held =
            |(owner, _): &(usize, bool)| self.things.get(owner).is_some_and(|owner| !waits(owner));
        self.things
            .get(&number)
            .is_some_and(|thing| thing.owners.iter().any(held))
    }

    fn carry_out(&mut self, action: Action) {
        let own = number(&action.object().uid);
        match action {
            Action::Collect { policy, .. } => {
                assert!(
                    !self.is_held(own),
                    "{own} has an owner that is there: {self:?}"
                );
                self.delete(own, policy);
            }
            Action::Release { owners, absent, .. } => {
                for owner in &absent {
                    assert!(
                        !self.things.contains_key(&number(&owner.uid)),
                        "{own} loses an owner that is there"
                    );
                }
                self.release(
                    own,
                    &owners.iter().map(|uid| number(uid)).collect::<Vec<_>>(),
                );
            }
            Action::Unblock { .. } => {
                let Some(mut thing) = self.things.get(&own).cloned() else {
                    return;
                };
                thing
                    .owners
                    .iter_mut()
                    .for_each(|(_, block)| *block = false);
                self.put(own, thing);
            }
            Action::Finish { finalizer, .. } => self.finish(own, finalizer),
            Action::Orphan { .. } => {
                let named = |thing: &Thing| thing.owners.iter().any(|(owner, _)| *owner == own);
                let dependents = self.things.iter().filter(|(_, thing)| named(thing));
                for dependent in dependents.map(|(number, _)| *number).collect::<Vec<_>>() {
                    self.release(dependent, &[own]);
                }
                self.finish(own, "orphan");
            }
        }
    }

    /// Carries actions out until there is nothing to do.
    fn settle(&mut self) {
        for _ in 0..1000 {
            let actions = self.graph.actions();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                // Others may have changed the world meanwhile: the one that carries it out looks
                // once more, as the real one does.
                if self.graph.actions().contains(&action) {
                    self.carry_out(action);
                }
            }
        }
        panic!("it never ends: {self:?}");
    }
}

/// Things of which each is owned by some that came before it.
fn things() -> impl Strategy<Value = Vec<Vec<(usize, bool)>>> {
    let owners = |number: usize| {
        prop::collection::vec(
            (0..number.max(1), any::<bool>()),
            0..if number == 0 { 1 } else { 3 },
        )
    };
    (2_usize..12).prop_flat_map(move |count| (0..count).map(owners).collect::<Vec<_>>())
}

fn world(things: &[Vec<(usize, bool)>]) -> World {
    let mut world = World::default();
    for (number, owners) in things.iter().enumerate() {
        let mut owners = owners.clone();
        owners.sort_unstable();
        owners.dedup_by_key(|(owner, _)| *owner);
        world.put(
            number,
            Thing {
                owners,
                ..Thing::default()
            },
        );
    }
    world
}

proptest! {
    /// Named invariants: an object whose owners are all gone is deleted; an object with an existing
    /// owner stays.
    #[test]
    fn objects_without_owners_are_deleted_and_owned_ones_stay(things in things(), doomed in 0_usize..12, policy in 0_usize..3) {
        let mut world = world(&things);
        world.settle();
        prop_assert_eq!(world.things.len(), things.len(), "nothing goes by itself");
        let doomed = doomed % things.len();
        let policy = ["Background", "Foreground", "Orphan"][policy];
        world.delete(doomed, policy);
        world.settle();
        prop_assert!(!world.things.contains_key(&doomed), "the deletion ends");
        for (number, thing) in &world.things {
            let before = !things[*number].is_empty();
            let orphaned = policy == "Orphan" && things[*number].iter().any(|(owner, _)| *owner == doomed);
            prop_assert!(!before || orphaned || world.is_held(*number), "{} is left over", number);
            prop_assert!(thing.owners.iter().all(|(owner, _)| world.things.contains_key(owner)), "dangling references");
        }
        if policy == "Orphan" {
            prop_assert_eq!(&world.gone, &vec![doomed], "orphans stay");
        }
    }

    /// Named invariant: foreground deletion removes no object before its blocking dependents. (With
    /// one owner each: an object with two owners may be released by one of them to break an
    /// apparent cycle, as upstream does.)
    #[test]
    fn foreground_deletion_removes_owners_last(things in things(), doomed in 0_usize..12) {
        let things: Vec<Vec<(usize, bool)>> =
            things.into_iter().map(|owners| owners.into_iter().take(1).collect()).collect();
        let mut world = world(&things);
        let doomed = doomed % things.len();
        world.delete(doomed, "Foreground");
        world.settle();
        let place = |number: usize| world.gone.iter().position(|gone| *gone == number);
        for (number, owners) in things.iter().enumerate() {
            if owners.contains(&(doomed, true)) {
                prop_assert!(place(number).is_some() && place(number) < place(doomed), "{} did not go first", number);
            }
        }
    }

    /// Named invariant: however often and in whatever order a kind is listed, the graph is the
    /// same.
    #[test]
    fn a_list_gives_the_same_graph_as_the_changes(things in things(), missing in prop::collection::btree_set(0_usize..12, 0..4)) {
        let world = world(&things);
        let mut changed = world.clone();
        for number in &missing {
            if let Some(thing) = changed.things.get(number).cloned() {
                changed.graph.gone(&meta(*number, &thing).uid);
            }
        }
        let mut listed = world.clone();
        let left: Vec<Meta> = world.things.iter().filter(|(number, _)| !missing.contains(number))
            .map(|(number, thing)| meta(*number, thing)).collect();
        listed.graph.listed(0, &left);
        prop_assert_eq!(listed.graph.len(), left.len());
        prop_assert_eq!(changed.graph.actions(), listed.graph.actions());
    }
}

proptest! {
    /// Named invariant: every object with a changed action was reported as touched, so that a queue
    /// of touched keys misses nothing.
    #[test]
    fn a_change_touches_every_object_for_which_there_is_something_new_to_do(
        things in things(),
        steps in prop::collection::vec((0_usize..12, 0_usize..4), 0..20),
    ) {
        let mut world = world(&things);
        let mut known = BTreeMap::new();
        let mut queue = BTreeSet::new();
        for (thing, step) in steps {
            queue.extend(world.graph.touched());
            for key in std::mem::take(&mut queue) {
                known.insert(key.clone(), world.graph.action(&key));
            }
            let all: BTreeSet<String> = world.graph.actions().iter().map(|action| format!("{action:?}")).collect();
            let kept: BTreeSet<String> = known.values().flatten().map(|action| format!("{action:?}")).collect();
            prop_assert!(all.is_subset(&kept), "{:?} is not known of", all.difference(&kept));
            let thing = thing % things.len();
            match step {
                0 => world.delete(thing, "Background"),
                1 => world.delete(thing, "Foreground"),
                2 => world.delete(thing, "Orphan"),
                _ => world.finish(thing, "foregroundDeletion"),
            }
        }
    }
}

#[test]
fn a_circle_that_waits_for_itself_is_opened() {
    let mut world = World::default();
    world.put(
        0,
        Thing {
            owners: vec![(1, true)],
            ..Thing::default()
        },
    );
    world.put(
        1,
        Thing {
            owners: vec![(0, true)],
            ..Thing::default()
        },
    );
    world.delete(0, "Foreground");
    world.settle();
    assert!(world.things.is_empty(), "{world:?}");
}

#[test]
fn a_deleted_owner_of_two_is_removed_from_the_object() {
    let mut world = world(&[vec![], vec![], vec![(0, true), (1, false)]]);
    world.delete(0, "Background");
    world.settle();
    assert_eq!(world.things[&2].owners, [(1, false)]);
    world.delete(1, "Background");
    world.settle();
    assert!(world.things.is_empty());
}

/// A controller whose last create was on its way while its object was deleted: the graph sees the
/// dependent once the owner is gone.
#[test]
fn a_dependent_that_comes_after_its_owner_orphaned_the_others_loses_the_reference() {
    let mut world = world(&[vec![], vec![(0, true)]]);
    world.delete(0, "Orphan");
    world.settle();
    let late = Thing {
        owners: vec![(0, true)],
        ..Thing::default()
    };
    world.put(2, late);
    world.settle();
    assert_eq!(world.gone, [0]);
    assert!(world.things[&1].owners.is_empty(), "{world:?}");
    assert!(world.things[&2].owners.is_empty(), "{world:?}");
}
