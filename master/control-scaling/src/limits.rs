//! How fast the number of replicas follows the metrics (upstream: `horizontal.go`). Pure, over a
//! memory of earlier recommendations and changes.

use config_kube::k8s_openapi::api::autoscaling::v2::{
    HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerSpec,
};
use std::cmp::Ordering;
use std::time::{Duration, Instant};

/// How long a smaller number waits where no behaviour is given (upstream:
/// `downscale-stabilization`).
const DOWNSCALE_STABILIZATION: Duration = Duration::from_secs(300);
/// The longest time that anything is remembered: no window and no period is longer (upstream's
/// validation).
const MAX_HISTORY: Duration = Duration::from_secs(3600);

/// Numbers of replicas, with the times at which they were recommended or set.
type Times = Vec<(Instant, i32)>;

/// An autoscaler's memory. It is lost at a restart, as upstream's: then the first number counts as
/// a recommendation.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    recommended: Times,
    added: Times,
    removed: Times,
}

/// A reason and a message of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explanation {
    /// The reason, one word.
    pub reason: &'static str,
    /// The message.
    pub message: &'static str,
}

const fn explain(reason: &'static str, message: &'static str) -> Explanation {
    Explanation { reason, message }
}

/// A number of replicas, whether a limit changed it, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limited {
    /// Replicas.
    pub replicas: i32,
    /// The condition `AbleToScale`.
    pub able: Explanation,
    /// Whether a limit changed the number.
    pub limited: bool,
    /// The condition `ScalingLimited`.
    pub why: Explanation,
}

const WITHIN: Explanation = explain(
    "DesiredWithinRange",
    "the desired count is within the acceptable range",
);
const READY: Explanation = explain("ReadyForNewScale", "recommended size matches current size");
const TOO_MANY: Explanation = explain(
    "TooManyReplicas",
    "the desired replica count is more than the maximum replica count",
);
const TOO_FEW: Explanation = explain(
    "TooFewReplicas",
    "the desired replica count is less than the minimum replica count",
);
const TOO_FAST_UP: Explanation = explain(
    "ScaleUpLimit",
    "the desired replica count is increasing faster than the maximum scale rate",
);
const TOO_FAST_DOWN: Explanation = explain(
    "ScaleDownLimit",
    "the desired replica count is decreasing faster than the maximum scale rate",
);
const STABLE_UP: Explanation = explain(
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const STABLE_DOWN: Explanation = explain(
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);

fn recent(all: &Times, within: Duration, now: Instant) -> impl Iterator<Item = i32> {
    let is_recent = move |at: Instant| now.saturating_duration_since(at) < within;
    all.iter()
        .filter(move |(at, _)| is_recent(*at))
        .map(|(_, number)| *number)
}

impl Memory {
    /// The current number at the start counts as a recommendation, so that a restart does not scale
    /// down at once.
    pub fn begin(&mut self, current: i32, now: Instant) {
        if self.recommended.is_empty() {
            self.recommended.push((now, current));
        }
    }

    /// The number of replicas was changed.
    pub fn scaled(&mut self, from: i32, to: i32, now: Instant) {
        if to > from {
            self.added.push((now, to.saturating_sub(from)));
        } else if to < from {
            self.removed.push((now, from.saturating_sub(to)));
        }
    }

    fn ask(&mut self, wanted: i32, now: Instant) {
        self.recommended.push((now, wanted));
        for all in [&mut self.recommended, &mut self.added, &mut self.removed] {
            all.retain(|(at, _)| now.saturating_duration_since(*at) < MAX_HISTORY);
        }
    }

    /// Limits the number that the metrics ask for.
    pub fn limit(
        &mut self,
        spec: &HorizontalPodAutoscalerSpec,
        current: i32,
        wanted: i32,
        now: Instant,
    ) -> Limited {
        let least = spec.min_replicas.unwrap_or(1);
        let rules = spec.behavior.as_ref();
        let Some(rules) = rules else {
            let stable = recent(&self.recommended, DOWNSCALE_STABILIZATION, now)
                .chain([wanted])
                .max()
                .unwrap_or(wanted);
            self.ask(wanted, now);
            let able = if stable == wanted { READY } else { STABLE_DOWN };
            return limited(
                able,
                stable,
                plain(current, stable, least, spec.max_replicas),
            );
        };
        let (up, down) = (rules.scale_up.as_ref(), rules.scale_down.as_ref());
        let stable = self.stable(up, down, current, wanted, now);
        self.ask(wanted, now);
        let able = match stable {
            stable if stable == wanted => READY,
            _ if wanted >= current => STABLE_UP,
            _ => STABLE_DOWN,
        };
        let found = match stable.cmp(&current) {
            Ordering::Greater => {
                let rate = self.highest(up, current, now).max(current);
                if spec.max_replicas > rate {
                    at_most(stable, rate, TOO_FAST_UP)
                } else {
                    at_most(stable, spec.max_replicas, TOO_MANY)
                }
            }
            Ordering::Less => {
                let rate = self.lowest(down, current, now).min(current);
                if least < rate {
                    at_least(stable, rate, TOO_FAST_DOWN)
                } else {
                    at_least(stable, least, TOO_FEW)
                }
            }
            Ordering::Equal => bounded(stable, WITHIN),
        };
        limited(able, stable, found)
    }

    /// The current number, brought between the least and the most that was asked for within the
    /// windows.
    fn stable(
        &self,
        up: Option<&HPAScalingRules>,
        down: Option<&HPAScalingRules>,
        current: i32,
        wanted: i32,
        now: Instant,
    ) -> i32 {
        let window = |rules: Option<&HPAScalingRules>, usual: Duration| {
            let seconds = rules.and_then(|rules| rules.stabilization_window_seconds);
            seconds.map_or(usual, |seconds| {
                Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
            })
        };
        let of = |window| recent(&self.recommended, window, now).chain([wanted]);
        let least = of(window(up, Duration::ZERO)).min().unwrap_or(wanted);
        let most = of(window(down, DOWNSCALE_STABILIZATION))
            .max()
            .unwrap_or(wanted);
        current.max(least).min(most)
    }

    /// The number at the beginning of a policy's period.
    fn before(&self, policy: &HPAScalingPolicy, current: i32, now: Instant) -> i32 {
        let period = Duration::from_secs(u64::try_from(policy.period_seconds).unwrap_or_default());
        let sum = |all| recent(all, period, now).fold(0, i32::saturating_add);
        let (added, removed) = (sum(&self.added), sum(&self.removed));
        current.saturating_sub(added).saturating_add(removed)
    }

    fn highest(&self, rules: Option<&HPAScalingRules>, current: i32, now: Instant) -> i32 {
        let to = |policy: &HPAScalingPolicy| {
            let before = self.before(policy, current, now);
            if policy.type_ == "Pods" {
                before.saturating_add(policy.value)
            } else {
                whole((f64::from(before) * (1.0 + f64::from(policy.value) / 100.0)).ceil())
            }
        };
        match select(rules) {
            Select::Disabled => current,
            Select::Least => policies(rules).map(to).min().unwrap_or(i32::MAX),
            Select::Most => policies(rules).map(to).max().unwrap_or(i32::MAX),
        }
    }

    fn lowest(&self, rules: Option<&HPAScalingRules>, current: i32, now: Instant) -> i32 {
        let to = |policy: &HPAScalingPolicy| {
            let before = self.before(policy, current, now);
            if policy.type_ == "Pods" {
                before.saturating_sub(policy.value)
            } else {
                whole(f64::from(before) * (1.0 - f64::from(policy.value) / 100.0))
            }
        };
        match select(rules) {
            Select::Disabled => current,
            // The least change leaves the most.
            Select::Least => policies(rules).map(to).max().unwrap_or(i32::MIN),
            Select::Most => policies(rules).map(to).min().unwrap_or(i32::MIN),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the conversion saturates")]
const fn whole(number: f64) -> i32 {
    number as i32
}

enum Select {
    Disabled,
    Least,
    Most,
}

fn select(rules: Option<&HPAScalingRules>) -> Select {
    match rules.and_then(|rules| rules.select_policy.as_deref()) {
        Some("Disabled") => Select::Disabled,
        Some("Min") => Select::Least,
        _ => Select::Most,
    }
}

fn policies(rules: Option<&HPAScalingRules>) -> impl Iterator<Item = &HPAScalingPolicy> {
    rules
        .into_iter()
        .flat_map(|rules| rules.policies.iter().flatten())
}

/// A number within its bounds, and which bound holds it there.
#[derive(Debug, Clone, Copy)]
struct Bounded {
    replicas: i32,
    why: Explanation,
}

const fn bounded(replicas: i32, why: Explanation) -> Bounded {
    Bounded { replicas, why }
}

fn limited(able: Explanation, stable: i32, bounded: Bounded) -> Limited {
    Limited {
        replicas: bounded.replicas,
        able,
        limited: bounded.replicas != stable,
        why: bounded.why,
    }
}

fn at_most(wanted: i32, most: i32, why: Explanation) -> Bounded {
    if wanted > most {
        bounded(most, why)
    } else {
        bounded(wanted, WITHIN)
    }
}

fn at_least(wanted: i32, least: i32, why: Explanation) -> Bounded {
    if wanted < least {
        bounded(least, why)
    } else {
        bounded(wanted, WITHIN)
    }
}

/// The bounds where no behaviour is given: at most twice as many at once, four at least.
fn plain(current: i32, wanted: i32, least: i32, most: i32) -> Bounded {
    let rate = current.saturating_mul(2).max(4);
    if wanted < least {
        bounded(least, TOO_FEW)
    } else if most > rate {
        at_most(wanted, rate, TOO_FAST_UP)
    } else {
        at_most(wanted, most, TOO_MANY)
    }
}
