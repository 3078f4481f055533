//! Faults and changes from outside: deletion, restart of the agent, reboot, a clock that is set.

use super::{Event, World, seconds};
use crate::backoff::later;
use crate::machine::{EVICTION_GRACE, end_of};
use crate::notes::{Eviction, Notes};
use crate::simulation_story::{Behaviour, Fault, GATE, Traits, described};
use agent_runtime::{ContainerState, ExitCause};
use config_kube::k8s_openapi::api::core::v1::PodCondition;
use config_kube::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::SignedDuration;
use serde_json::json;
use std::collections::BTreeMap;

impl World {
    /// Whether the pod's readiness gate is open, if it has one.
    pub(super) fn is_open(&self) -> bool {
        let spec = self.pod.spec.as_ref().unwrap();
        let has_one = spec
            .readiness_gates
            .as_ref()
            .is_some_and(|all| !all.is_empty());
        let open = self.gate().is_some_and(|gate| gate.status == "True");
        !has_one || open
    }

    /// The readiness gate's condition, which other writers set.
    fn gate(&self) -> Option<&PodCondition> {
        let status = self.pod.status.as_ref()?;
        let mut conditions = status.conditions.iter().flatten();
        conditions.find(|condition| condition.type_ == GATE)
    }

    /// Sets the readiness gate's condition, as another writer would.
    fn set_gate(&mut self, gate: Option<PodCondition>) {
        let status = self.pod.status.get_or_insert_default();
        let conditions = status.conditions.get_or_insert_default();
        conditions.retain(|condition| condition.type_ != GATE);
        conditions.extend(gate);
    }

    /// Opens or closes the readiness gate.
    fn turn_gate(&mut self) {
        let open = self.gate().is_some_and(|gate| gate.status == "True");
        let status = if open { "False" } else { "True" };
        let gate = json!({"type": GATE, "status": status});
        self.set_gate(Some(serde_json::from_value(gate).unwrap()));
    }

    /// Asks for more memory, or more CPU, for the first main container.
    fn ask_for_more(&mut self, memory: bool) {
        let first = &mut self.pod.spec.as_mut().unwrap().containers[0];
        let resources = first.resources.as_mut().unwrap();
        let requests = resources.requests.as_mut().unwrap();
        let name = if memory { "memory" } else { "cpu" };
        let Quantity(amount) = requests.get_mut(name).unwrap();
        amount.insert(0, '1');
    }

    fn forget(&mut self) {
        self.mounted = false;
        self.notes = Notes {
            // An eviction is stored before the first container gets its stop signal.
            evicted: self.notes.evicted.take(),
            ..Notes::default()
        };
        let gate = self.gate().cloned();
        self.pod.status.clone_from(&self.written);
        self.set_gate(gate);
        self.written = None;
    }

    /// Sets the clock. Events keep their distance from now.
    fn set_clock(&mut self, seconds: i16) {
        let by = SignedDuration::from_secs(seconds.into());
        self.now = self.now.checked_add(by).unwrap();
        self.latest = self.latest.max(self.now);
        self.notes.shift(by);
        self.volumes_at = self.volumes_at.checked_add(by).unwrap();
        for (at, ..) in &mut self.events {
            *at = at.checked_add(by).unwrap();
        }
    }

    /// What the pod's volumes show is there only after this number of seconds.
    pub(crate) fn volumes_come_after(&mut self, wait: u16) {
        self.volumes_at = later(self.now, seconds(wait));
    }

    pub(crate) fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Delete => {
                self.pod.metadata.deletion_timestamp = Some(Time(self.now));
                let grace = i64::try_from(self.grace.as_secs()).unwrap();
                self.pod.metadata.deletion_grace_period_seconds = Some(grace);
                // A start that has not reached containerd yet is given up.
                for (id, (seen, behaviour)) in std::mem::take(&mut self.half_started) {
                    if behaviour.obeys {
                        self.notes.starting.remove(&seen.key.container);
                        self.started.remove(&id);
                        self.events.retain(|(_, of, _)| *of != id);
                    } else {
                        self.half_started.insert(id, (seen, behaviour));
                    }
                }
            }
            Fault::Debug => {
                let spec = self.pod.spec.as_mut().unwrap();
                let all = spec.ephemeral_containers.get_or_insert_default();
                let name = format!("debug{}", all.len());
                all.push(serde_json::from_value(described(&name, Traits::default())).unwrap());
            }
            Fault::Image => {
                let first = &mut self.pod.spec.as_mut().unwrap().containers[0];
                first.image.as_mut().unwrap().push('0');
            }
            Fault::Clock(seconds) => self.set_clock(seconds),
            Fault::Resize { anew } => self.ask_for_more(anew),
            Fault::ShorterGrace if self.pod.metadata.deletion_timestamp.is_some() => {
                self.grace = self.grace.min(seconds(1));
                let grace = i64::try_from(self.grace.as_secs()).unwrap();
                self.pod.metadata.deletion_grace_period_seconds = Some(grace);
            }
            Fault::Gate => self.turn_gate(),
            Fault::Evict if end_of(&self.pod, self.now).is_none() => {
                let why = "The node was low on resource: memory.".to_owned();
                self.notes.evicted.get_or_insert(Eviction {
                    reason: Eviction::PRESSURE,
                    message: why,
                    annotations: BTreeMap::new(),
                    grace: EVICTION_GRACE,
                });
            }
            Fault::Evict | Fault::ShorterGrace => {}
            Fault::AgentRestart => {
                self.forget();
                self.break_off(|behaviour| behaviour.hook.1);
                // postStart hooks are not run again, and probes begin anew.
                self.events
                    .retain(|(_, _, event)| matches!(event, Event::Ends(_)));
                let ids: Vec<String> = self.alive().map(|seen| seen.id.clone()).collect();
                for id in ids {
                    let behaviour = self.behaviours[self.started.len() % self.behaviours.len()];
                    self.begin_probes(&id, behaviour);
                }
            }
            Fault::Reboot => {
                let ids: Vec<String> = self.alive().map(|seen| seen.id.clone()).collect();
                for id in ids {
                    self.end(&id, 255);
                }
                self.break_off(|_| false);
                self.seen.iter_mut().for_each(|seen| seen.this_boot = false);
                for seen in &mut self.seen {
                    if let ContainerState::Exited {
                        code: 255, cause, ..
                    } = &mut seen.state
                    {
                        *cause = ExitCause::Unseen;
                    }
                }
                self.forget();
            }
        }
    }

    /// The agent that waited for the starts under way is gone: their attempts stay half made or, if
    /// `lives`, come to run without it.
    fn break_off(&mut self, lives: impl Fn(Behaviour) -> bool) {
        self.events.retain(|(_, _, event)| *event != Event::Started);
        for (seen, behaviour) in std::mem::take(&mut self.half_started).into_values() {
            if lives(behaviour) {
                self.run(seen, behaviour);
            } else {
                self.seen.push(seen);
            }
        }
    }
}
