//! One volume of a driver on this machine, and which call comes next for it. Pure.
//!
//! A call may be made and its answer be lost: the driver hangs, the agent ends, the power goes. So
//! a volume notes that a call begins before it is made, and that it is done after the driver has
//! said so. What has only begun counts as there when it is to go, and as missing when it is to be
//! there; CSI's calls may be repeated. Guarantees, whatever is lost and whenever:
//! - a volume that is staged is published only after that, and unstaged only when it is published
//!   nowhere;
//! - what was begun is undone before it is forgotten.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The recorded progress of a call to a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Progress {
    /// It was or will be made; its result is not known.
    Begun,
    /// The driver has done it.
    Done,
}

/// A volume, as it is kept on the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Volume {
    /// The driver's name.
    pub(crate) driver: String,
    /// The driver's handle of the volume.
    pub(crate) handle: String,
    /// The boot in which this was written; mounts end with it.
    pub(crate) boot: String,
    /// Whether it is staged.
    pub(crate) stage: Option<Progress>,
    /// Where it is published, by targets.
    pub(crate) targets: BTreeMap<String, Progress>,
}

/// What is wanted of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal<'a> {
    /// It is published at the target; staged before, where its driver stages.
    Published {
        target: &'a str,
        /// Whether the driver stages this volume.
        staged: bool,
    },
    /// It is not published at the target, and not staged either once no target has it.
    Gone { target: &'a str },
    /// It is not staged, unless a target has it.
    Unstaged,
}

/// The next call, or the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// `NodeStageVolume`.
    Stage,
    /// `NodePublishVolume` at the target.
    Publish(&'a str),
    /// `NodeUnpublishVolume` at the target.
    Unpublish(&'a str),
    /// `NodeUnstageVolume`.
    Unstage,
    /// Nothing of the volume is left.
    Forget,
}

impl Volume {
    /// A volume of which nothing is here yet.
    pub(crate) fn new(driver: &str, handle: &str, boot: &str) -> Self {
        Self {
            driver: driver.to_owned(),
            handle: handle.to_owned(),
            boot: boot.to_owned(),
            stage: None,
            targets: BTreeMap::new(),
        }
    }

    /// What comes next on the way to the goal; none where it is reached.
    pub(crate) fn next<'a>(&self, goal: Goal<'a>) -> Option<Step<'a>> {
        match goal {
            Goal::Published { target, staged } => {
                if staged && self.stage != Some(Progress::Done) {
                    return Some(Step::Stage);
                }
                let at = self.targets.get(target);
                (at != Some(&Progress::Done)).then_some(Step::Publish(target))
            }
            Goal::Gone { target } if self.targets.contains_key(target) => {
                Some(Step::Unpublish(target))
            }
            Goal::Gone { .. } | Goal::Unstaged if !self.targets.is_empty() => None,
            Goal::Gone { .. } | Goal::Unstaged if self.stage.is_some() => Some(Step::Unstage),
            Goal::Gone { .. } | Goal::Unstaged => Some(Step::Forget),
        }
    }

    /// Notes that a call begins.
    pub(crate) fn begin(&mut self, step: Step<'_>) {
        match step {
            Step::Stage | Step::Unstage => self.stage = Some(Progress::Begun),
            Step::Publish(target) | Step::Unpublish(target) => {
                self.targets.insert(target.to_owned(), Progress::Begun);
            }
            Step::Forget => {}
        }
    }

    /// Notes that the driver has done what was begun.
    pub(crate) fn done(&mut self, step: Step<'_>) {
        match step {
            Step::Stage => self.stage = Some(Progress::Done),
            Step::Unstage => self.stage = None,
            Step::Publish(target) => {
                self.targets.insert(target.to_owned(), Progress::Done);
            }
            Step::Unpublish(target) => {
                self.targets.remove(target);
            }
            Step::Forget => {}
        }
    }

    /// After a boot no mount is left, but the driver may keep its own notes: all is done again, or
    /// undone.
    pub(crate) fn enter(&mut self, boot: &str) {
        if self.boot == boot {
            return;
        }
        boot.clone_into(&mut self.boot);
        self.stage = self.stage.map(|_| Progress::Begun);
        self.targets
            .values_mut()
            .for_each(|progress| *progress = Progress::Begun);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// A driver that holds the CO to the order of the CSI specification.
    #[derive(Debug, Default)]
    struct Driver {
        staged: bool,
        published: BTreeSet<String>,
    }

    impl Driver {
        fn takes(&mut self, step: Step<'_>, stages: bool) {
            match step {
                Step::Stage => self.staged = true,
                Step::Publish(target) => {
                    assert!(self.staged || !stages, "published before it was staged");
                    self.published.insert(target.to_owned());
                }
                Step::Unpublish(target) => {
                    self.published.remove(target);
                }
                Step::Unstage => {
                    assert!(self.published.is_empty(), "unstaged while published");
                    self.staged = false;
                }
                Step::Forget => {
                    assert!(!self.staged && self.published.is_empty(), "leaked");
                }
            }
        }
    }

    /// The fate of a call.
    #[derive(Debug, Clone, Copy)]
    enum Luck {
        Done,
        /// The driver refuses, or was never reached.
        Refused,
        /// The driver does it, and the answer, or the agent, is lost.
        Lost,
        /// The same, and the machine boots: no mount is left, though the driver keeps its notes.
        Booted,
    }

    fn luck() -> impl Strategy<Value = Luck> {
        prop_oneof![
            4 => Just(Luck::Done),
            1 => Just(Luck::Refused),
            1 => Just(Luck::Lost),
            1 => Just(Luck::Booted),
        ]
    }

    /// The record on the disk, the driver, and how often the machine has booted.
    #[derive(Debug)]
    struct World {
        kept: Option<Volume>,
        driver: Driver,
        boots: u32,
        stages: bool,
    }

    impl World {
        /// Goes towards the goal until it is reached or a call has no good end.
        fn go(&mut self, goal: Goal<'_>, luck: &mut impl Iterator<Item = Luck>) -> bool {
            let boot = self.boots.to_string();
            let mut volume = self
                .kept
                .clone()
                .unwrap_or_else(|| Volume::new("d", "h", &boot));
            volume.enter(&boot);
            for _ in 0..8 {
                let Some(step) = volume.next(goal) else {
                    return true;
                };
                if step == Step::Forget {
                    self.driver.takes(step, self.stages);
                    self.kept = None;
                    return true;
                }
                volume.begin(step);
                self.kept = Some(volume.clone());
                match luck.next().unwrap_or(Luck::Done) {
                    Luck::Done => {
                        self.driver.takes(step, self.stages);
                        volume.done(step);
                        self.kept = Some(volume.clone());
                    }
                    Luck::Refused => return false,
                    Luck::Lost => {
                        self.driver.takes(step, self.stages);
                        return false;
                    }
                    Luck::Booted => {
                        self.driver.takes(step, self.stages);
                        self.boots += 1;
                        return false;
                    }
                }
            }
            panic!("no end: {volume:?}");
        }
    }

    fn goal(target: &str, published: bool, stages: bool) -> Goal<'_> {
        if published {
            Goal::Published {
                target,
                staged: stages,
            }
        } else {
            Goal::Gone { target }
        }
    }

    proptest! {
        /// Pods come and go in any order, calls fail or are lost, and the machine boots: the
        /// driver's calls are always in order, a wanted volume is published after the first call
        /// sequence without a fault, and at the end no volume is left.
        #[test]
        fn the_order_of_calls_holds_and_nothing_is_leaked(
            stages in any::<bool>(),
            wishes in proptest::collection::vec((0..3_u8, any::<bool>(), proptest::collection::vec(luck(), 0..5)), 0..24),
        ) {
            let mut world = World { kept: None, driver: Driver::default(), boots: 0, stages };
            for (pod, published, luck) in wishes {
                let target = format!("{pod}/v");
                let goal = goal(&target, published, stages);
                let reached = world.go(goal, &mut luck.into_iter());
                if reached {
                    prop_assert_eq!(world.driver.published.contains(&target), published);
                }
            }
            for pod in 0..3 {
                let target = format!("{pod}/v");
                let gone = Goal::Gone { target: &target };
                prop_assert!(world.go(gone, &mut std::iter::empty()));
                prop_assert!(!world.driver.published.contains(&target));
            }
            prop_assert!(world.kept.is_none());
            prop_assert!(!world.driver.staged && world.driver.published.is_empty());
        }
    }

    #[test]
    fn a_second_pod_is_published_without_a_second_staging_and_the_last_to_go_unstages() {
        let mut world = World {
            kept: None,
            driver: Driver::default(),
            boots: 0,
            stages: true,
        };
        let none = || std::iter::empty::<Luck>();
        let (first, second) = (goal("a/v", true, true), goal("b/v", true, true));
        assert!(world.go(first, &mut none()));
        let volume = world.kept.clone().unwrap();
        assert_eq!(volume.next(second), Some(Step::Publish("b/v")));
        assert!(world.go(second, &mut none()));
        assert!(world.go(Goal::Gone { target: "a/v" }, &mut none()));
        assert!(world.go(Goal::Unstaged, &mut none()), "it is published");
        assert!(world.driver.staged && world.kept.is_some());
        assert!(world.go(Goal::Gone { target: "b/v" }, &mut none()));
        assert!(!world.driver.staged && world.kept.is_none());
    }
}
