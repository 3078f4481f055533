//! An engine whose calls are counted.

use crate::done::Done;
use agent_runtime::{
    Attached, Change, Command, Container, ContainerSpec, ExecOutput, Image, ImageSpace, Keyring,
    Layers, Pause, Pending, Process, Progress, PullPolicy, Resources, Runtime, container_id,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The engine, and what counts its calls, by upstream's names of operations where it has one.
#[derive(Debug)]
pub struct Counted {
    engine: Arc<dyn Runtime>,
    done: Done,
}

impl Counted {
    /// An engine whose calls are counted.
    pub fn new(engine: Arc<dyn Runtime>, done: Done) -> Self {
        Self { engine, done }
    }

    fn call<'a, T: 'a>(&'a self, operation: &'static str, call: Pending<'a, T>) -> Pending<'a, T> {
        Box::pin(async move {
            let begun = Instant::now();
            let result = call.await;
            self.done.called(operation, result.is_ok(), begun.elapsed());
            result
        })
    }
}

impl Runtime for Counted {
    fn version(&self) -> Pending<'_, String> {
        self.call("version", self.engine.version())
    }

    fn obtain_image<'a>(
        &'a self,
        image: &'a str,
        policy: PullPolicy,
        keys: &'a Keyring,
    ) -> Pending<'a, Image> {
        let operation = match policy {
            PullPolicy::Never => "image_status",
            PullPolicy::Always | PullPolicy::IfNotPresent => "pull_image",
        };
        self.call(operation, self.engine.obtain_image(image, policy, keys))
    }

    fn pull_progress(&self, image: &str) -> Option<Progress> {
        self.engine.pull_progress(image)
    }

    fn layers<'a>(&'a self, image: &'a str, digest: &'a str) -> Pending<'a, Layers> {
        self.call("image_layers", self.engine.layers(image, digest))
    }

    fn start<'a>(&'a self, spec: &'a ContainerSpec) -> Pending<'a, ()> {
        let key = &spec.key;
        let id = container_id(&key.pod.uid, &key.container, key.attempt);
        self.done.begins(id, &key.pod.uid);
        self.call("start_container", self.engine.start(spec))
    }

    fn share_processes<'a>(&'a self, wanted: &'a Pause) -> Pending<'a, String> {
        let call = self.engine.share_processes(wanted);
        self.call("share_processes", call)
    }

    fn end_sharing<'a>(&'a self, pod_uid: &'a str) -> Pending<'a, ()> {
        self.call("end_sharing", self.engine.end_sharing(pod_uid))
    }

    fn stop<'a>(&'a self, id: &'a str) -> Pending<'a, ()> {
        self.call("stop_container", self.engine.stop(id))
    }

    fn kill<'a>(&'a self, id: &'a str) -> Pending<'a, ()> {
        self.call("kill_container", self.engine.kill(id))
    }

    fn resize<'a>(
        &'a self,
        id: &'a str,
        resources: &'a Resources,
        needs: &'a str,
    ) -> Pending<'a, ()> {
        let call = self.engine.resize(id, resources, needs);
        self.call("update_container", call)
    }

    fn empty<'a>(&'a self, id: &'a str) -> Pending<'a, ()> {
        self.call("empty_container", self.engine.empty(id))
    }

    fn remove<'a>(&'a self, id: &'a str) -> Pending<'a, ()> {
        self.call("remove_container", self.engine.remove(id))
    }

    fn list<'a>(&'a self, pod_uid: Option<&'a str>) -> Pending<'a, Vec<Container>> {
        let list = self.call("list_containers", self.engine.list(pod_uid));
        Box::pin(async move {
            let seen = list.await?;
            self.done.looked(pod_uid, &seen);
            Ok(seen)
        })
    }

    fn exec<'a>(
        &'a self,
        id: &'a str,
        command: &'a [String],
        limit: Duration,
    ) -> Pending<'a, ExecOutput> {
        self.call("exec_sync", self.engine.exec(id, command, limit))
    }

    fn open<'a>(&'a self, id: &'a str, command: &'a Command) -> Pending<'a, Process> {
        self.call("exec", self.engine.open(id, command))
    }

    fn attach<'a>(&'a self, id: &'a str, stdin: bool) -> Pending<'a, Attached> {
        self.call("attach", self.engine.attach(id, stdin))
    }

    fn full_name(&self, image: &str) -> Option<String> {
        self.engine.full_name(image)
    }

    fn image_space(&self) -> Pending<'_, ImageSpace> {
        self.call("image_fs_info", self.engine.image_space())
    }

    fn images(&self) -> Pending<'_, Vec<Image>> {
        self.call("list_images", self.engine.images())
    }

    fn layer<'a>(&'a self, id: &'a str) -> Pending<'a, Option<PathBuf>> {
        self.call("container_layer", self.engine.layer(id))
    }

    fn remove_image<'a>(&'a self, name: &'a str) -> Pending<'a, ()> {
        self.call("remove_image", self.engine.remove_image(name))
    }

    fn changes(&self) -> tokio::sync::broadcast::Receiver<Change> {
        self.engine.changes()
    }
}
