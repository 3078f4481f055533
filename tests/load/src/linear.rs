//! Whether a history of concurrent calls is linearizable: there is one order of them, in which no
//! call comes before one that had returned when it began, and in which every answer is what the
//! object would have said.
//!
//! Wing and Gong's search with Lowe's memory of configurations (the set of calls already ordered,
//! and the state) that were met before. A call whose answer never came may have happened at any
//! time after its begin, or never.

use std::collections::HashSet;
use std::hash::Hash;

/// The sequential behaviour of an object.
pub trait Model {
    /// The object's state.
    type State: Clone + Eq + Hash;
    /// A call with its answer; a call that was never answered is one too.
    type Call;
    /// Before the first call.
    fn start(&self) -> Self::State;
    /// The state after the call, if the object in this state would have answered so.
    fn step(&self, state: &Self::State, call: &Self::Call) -> Option<Self::State>;
}

/// A call and the time from its begin to its answer, by any clock that all clients share.
#[derive(Debug, Clone)]
pub struct Timed<C> {
    /// A call and its answer.
    pub call: C,
    /// When it began.
    pub began: u64,
    /// When its answer was there; none where it never came.
    pub ended: Option<u64>,
}

/// The verdict on a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// An order exists.
    Linearizable,
    /// None exists. The calls of the longest order that could be made, by their position in the
    /// history.
    Impossible(Vec<usize>),
    /// The search was given up after this number of configurations.
    Unknown(usize),
}

/// Configurations that a search may meet.
const CONFIGURATIONS: usize = 20_000_000;

/// A begin or an end, linked to its neighbours in time.
#[derive(Debug, Clone, Copy)]
struct Mark {
    call: usize,
    /// For a begin: where its end is.
    end: Option<usize>,
    previous: usize,
    next: usize,
}

/// The marks in time, as a list out of which calls are lifted and put back.
struct Timeline {
    marks: Vec<Mark>,
}

/// The list's head.
const HEAD: usize = 0;

impl Timeline {
    fn new<C>(history: &[Timed<C>]) -> Self {
        // An end sorts behind a begin of the same time: then the two calls overlap, which demands
        // less.
        let mut times: Vec<(u64, bool, usize)> = Vec::new();
        for (number, timed) in history.iter().enumerate() {
            times.push((timed.began, false, number));
            times.push((timed.ended.unwrap_or(u64::MAX), true, number));
        }
        times.sort_unstable();
        let none = Mark {
            call: usize::MAX,
            end: None,
            previous: HEAD,
            next: HEAD,
        };
        let mut marks = vec![none];
        let mut begins = vec![HEAD; history.len()];
        for (at, (_, is_end, call)) in times.into_iter().enumerate() {
            let here = at + 1;
            marks[at].next = here;
            marks.push(Mark {
                call,
                end: None,
                previous: at,
                next: HEAD,
            });
            if is_end {
                marks[begins[call]].end = Some(here);
            } else {
                begins[call] = here;
            }
        }
        Self { marks }
    }

    fn first(&self) -> usize {
        self.marks[HEAD].next
    }

    fn unlink(&mut self, at: usize) {
        let Mark { previous, next, .. } = self.marks[at];
        self.marks[previous].next = next;
        if next != HEAD {
            self.marks[next].previous = previous;
        }
    }

    fn link(&mut self, at: usize) {
        let Mark { previous, next, .. } = self.marks[at];
        self.marks[previous].next = at;
        if next != HEAD {
            self.marks[next].previous = at;
        }
    }

    fn lift(&mut self, begin: usize) {
        self.unlink(begin);
        if let Some(end) = self.marks[begin].end {
            self.unlink(end);
        }
    }

    fn put_back(&mut self, begin: usize) {
        if let Some(end) = self.marks[begin].end {
            self.link(end);
        }
        self.link(begin);
    }
}

/// Searches for an order.
pub fn check<M: Model>(model: &M, history: &[Timed<M::Call>]) -> Verdict {
    let mut timeline = Timeline::new(history);
    let answered = history.iter().filter(|timed| timed.ended.is_some()).count();
    let mut seen: HashSet<(Vec<u64>, M::State)> = HashSet::new();
    let mut ordered = vec![0u64; history.len().div_ceil(64)];
    let mut done: Vec<(usize, M::State)> = Vec::new();
    let mut longest: Vec<usize> = Vec::new();
    let (mut state, mut left) = (model.start(), answered);
    let mut at = timeline.first();
    while left > 0 {
        let mark = timeline.marks[at];
        // A begin that may be next.
        if at != HEAD && mark.end.is_some() {
            let next = model.step(&state, &history[mark.call].call);
            if let Some(next) = next {
                ordered[mark.call / 64] |= 1 << (mark.call % 64);
                if seen.insert((ordered.clone(), next.clone())) {
                    if seen.len() > CONFIGURATIONS {
                        return Verdict::Unknown(seen.len());
                    }
                    left -= usize::from(history[mark.call].ended.is_some());
                    done.push((at, std::mem::replace(&mut state, next)));
                    timeline.lift(at);
                    at = timeline.first();
                    continue;
                }
                ordered[mark.call / 64] &= !(1 << (mark.call % 64));
            }
            at = mark.next;
            continue;
        }
        // An end whose call is not yet ordered: something before must be ordered otherwise.
        if done.len() > longest.len() {
            longest = done
                .iter()
                .map(|(begin, _)| timeline.marks[*begin].call)
                .collect();
        }
        let Some((begin, before)) = done.pop() else {
            return Verdict::Impossible(longest);
        };
        let call = timeline.marks[begin].call;
        ordered[call / 64] &= !(1 << (call % 64));
        left += usize::from(history[call].ended.is_some());
        state = before;
        timeline.put_back(begin);
        at = timeline.marks[begin].next;
    }
    Verdict::Linearizable
}
