//! The model of one stored object for the linearizability check: it is created, updated only with
//! its last version, read and deleted. And of a few objects that transactions change together.
//!
//! Values name versions: every write of a history has a value of its own, so that "the version with
//! this value" is what a resource version stands for, also where the answer with the version never
//! came.

use crate::linear::{Model, Timed, Verdict, check};
use std::collections::BTreeMap;

/// A value of its own for each write.
pub type Value = u64;

/// A call on one object, with its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Read: the value, if it is there.
    Read(Option<Value>),
    /// Make: whether it was made; false where it is there already.
    Create(Value, Answer),
    /// Change from the first value to the second.
    Update(Value, Value, Answer),
    /// Delete, if it has the value.
    Delete(Value, Answer),
}

/// The answer to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It happened.
    Done,
    /// The object was not as expected.
    Refused,
    /// None came.
    Lost,
}

/// One object.
#[derive(Debug, Clone, Copy)]
pub struct Register;

/// The state after a write whose expectation holds or not.
fn written<S>(holds: bool, answer: Answer, old: S, new: S) -> Option<S> {
    match (answer, holds) {
        (Answer::Done | Answer::Lost, true) => Some(new),
        (Answer::Refused | Answer::Lost, false) => Some(old),
        (Answer::Done, false) | (Answer::Refused, true) => None,
    }
}

impl Model for Register {
    type State = Option<Value>;
    type Call = Call;

    fn start(&self) -> Self::State {
        None
    }

    fn step(&self, state: &Self::State, call: &Call) -> Option<Self::State> {
        match *call {
            Call::Read(seen) => (seen == *state).then_some(*state),
            Call::Create(value, answer) => written(state.is_none(), answer, *state, Some(value)),
            Call::Update(from, to, answer) => {
                written(*state == Some(from), answer, *state, Some(to))
            }
            Call::Delete(value, answer) => written(*state == Some(value), answer, *state, None),
        }
    }
}

/// A transaction over some objects: what it expects of each, what it sets each to, and the answer;
/// or a read of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joint {
    /// All objects at one revision.
    Read(BTreeMap<u8, Value>),
    /// Expected and new values.
    Write(Vec<(u8, Option<Value>, Option<Value>)>, Answer),
}

/// A few objects together.
#[derive(Debug, Clone, Copy)]
pub struct Registers;

impl Model for Registers {
    type State = BTreeMap<u8, Value>;
    type Call = Joint;

    fn start(&self) -> Self::State {
        BTreeMap::new()
    }

    fn step(&self, state: &Self::State, call: &Joint) -> Option<Self::State> {
        match call {
            Joint::Read(seen) => (seen == state).then(|| state.clone()),
            Joint::Write(parts, answer) => {
                let holds = parts
                    .iter()
                    .all(|(key, expected, _)| state.get(key) == expected.as_ref());
                let mut new = state.clone();
                for (key, _, value) in parts {
                    match value {
                        Some(value) => new.insert(*key, *value),
                        None => new.remove(key),
                    };
                }
                written(holds, *answer, state.clone(), new)
            }
        }
    }
}

/// Checks each object's history by itself, which is enough: linearizability is local.
///
/// Errors: the first object whose history has no order, in words.
pub fn check_each(histories: &BTreeMap<String, Vec<Timed<Call>>>) -> Result<(), String> {
    for (object, history) in histories {
        match check(&Register, history) {
            Verdict::Linearizable => {}
            Verdict::Impossible(order) => {
                let stuck: Vec<_> = history
                    .iter()
                    .enumerate()
                    .filter(|(number, _)| !order.contains(number))
                    .take(8)
                    .collect();
                return Err(format!(
                    "{object}: no order explains its {} calls; after {} of them none of these can be next: {stuck:?}",
                    history.len(),
                    order.len()
                ));
            }
            Verdict::Unknown(met) => {
                return Err(format!("{object}: given up after {met} configurations"));
            }
        }
    }
    Ok(())
}
