//! A Deployment with a HorizontalPodAutoscaler, whose replicas follow the load.

use super::{CPU, Part, Start, Wish, object, template};
use crate::api::Deletion;
use crate::dice::Dice;
use crate::history::History;
use crate::kinds::Any;
use crate::pods::{app, is_ready, name, phase};
use crate::simulation::Worker;
use crate::world::World;
use master_control_scaling::HorizontalAutoscalers;
use master_control_workloads::deployment::Deployments;
use master_control_workloads::replica_set::ReplicaSets;
use serde_json::{Value, json};

const CONTROLLERS: &[Start] = &[
    Worker::<HorizontalAutoscalers>::boxed,
    Worker::<Deployments>::boxed,
    Worker::<ReplicaSets>::boxed,
];
const NAME: &str = "auto";
const SAMPLES: &str = "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods";
/// The target load of a pod, in thousandths of a CPU: half of its request.
const TARGET: usize = CPU / 2;
/// By how many pods its policy lets it grow at once: fewer than the range of its limits, so that
/// the policy matters.
const GROWS: usize = 2;

pub(crate) struct Scaling {
    pub(super) least: usize,
    pub(super) most: usize,
    /// The load of all pods together, in thousandths.
    load: usize,
    /// The number of replicas before.
    pub(super) before: usize,
}

impl Scaling {
    pub(crate) fn new(dice: &mut Dice) -> Self {
        let least = 1 + dice.below(2);
        Self {
            least,
            most: least + 1 + dice.below(4),
            load: TARGET * dice.below(6),
            before: least,
        }
    }

    /// The replicas that the load needs.
    fn wanted(&self) -> usize {
        self.load.div_ceil(TARGET).clamp(self.least, self.most)
    }

    /// The usage of each pod: an equal part of the load.
    fn samples(&self, world: &World) -> String {
        let pods = world.history.pods().into_iter();
        let pods: Vec<_> = pods
            .filter(|pod| app(pod) == NAME && is_ready(pod) && phase(pod) == "Running")
            .collect();
        let (now, each) = (
            world.processes.now.wall.to_string(),
            self.load / pods.len().max(1),
        );
        let items = pods.iter().map(|pod| {
            json!({"metadata": {"name": name(pod), "namespace": "default"}, "timestamp": now, "window": "15s",
                "containers": [{"name": "c", "usage": {"cpu": format!("{each}m")}}]})
        });
        let items: Vec<Value> = items.collect();
        json!({"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items}).to_string()
    }
}

fn replicas(world: &World) -> Option<usize> {
    let Some(Any::Deployment(one)) = world.history.object("deployments", NAME) else {
        return None;
    };
    usize::try_from(one.spec.as_ref()?.replicas?).ok()
}

impl Part for Scaling {
    fn controllers(&self) -> &'static [Start] {
        CONTROLLERS
    }

    fn objects(&self) -> Vec<(&'static str, Value)> {
        let deployment = json!({"replicas": self.least, "selector": {"matchLabels": {"app": NAME}},
            "template": template(NAME, CPU, &Value::Null)});
        let metric = json!({"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": 50}}});
        let policy = json!({"type": "Pods", "value": GROWS, "periodSeconds": 15});
        let scaler = json!({"minReplicas": self.least, "maxReplicas": self.most, "metrics": [metric],
            "behavior": {"scaleUp": {"policies": [policy]}},
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": NAME}});
        vec![
            ("deployments", object(NAME, &deployment)),
            ("horizontalpodautoscalers", object(NAME, &scaler)),
        ]
    }

    fn wish(&mut self, dice: &mut Dice, _: &History) -> Option<Wish> {
        self.load = TARGET * dice.below(6);
        None
    }

    /// The replicas stay within their limits, and never grow by more than the policy allows.
    fn check(&mut self, world: &World, _: &[(Deletion, Any)]) {
        world.processes.api.answer(SAMPLES, self.samples(world));
        let Some(now) = replicas(world) else { return };
        let limits = self.least..=self.most;
        assert!(limits.contains(&now), "{now} replicas, and not {limits:?}");
        let most = self.before + GROWS;
        assert!(now <= most, "{now} replicas after {}", self.before);
        self.before = now;
    }

    fn rest(&self, world: &World) -> Result<(), String> {
        let (now, ready, wanted) = (replicas(world), world.count(NAME), self.wanted());
        if now == Some(wanted) && ready == wanted {
            Ok(())
        } else {
            Err(format!(
                "{now:?} replicas, {ready} serve, the load of {} wants {wanted}",
                self.load
            ))
        }
    }
}
