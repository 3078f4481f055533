//! A master that is played by the test: it answers each watch with a stream that the test fills.

use super::*;
use agent_api::{Answer, Call, Lines};
use futures_util::stream;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

type Line = Result<Bytes, ApiError>;

/// A watch as the master sees it.
struct Opened {
    path: String,
    lines: mpsc::UnboundedSender<Line>,
}

impl Opened {
    fn tell(&self, kind: &str, object: &Value) {
        let line = json!({"type": kind, "object": object}).to_string();
        self.lines.send(Ok(line.into())).unwrap();
    }

    fn begun(&self, version: &str) {
        let annotations = json!({"k8s.io/initial-events-end": "true"});
        let metadata = json!({"resourceVersion": version, "annotations": annotations});
        self.tell("BOOKMARK", &json!({"metadata": metadata}));
    }
}

#[derive(Debug)]
struct Master {
    watches: mpsc::UnboundedSender<Opened>,
    /// The stored object, and the number of requests for it.
    object: Mutex<(Option<Value>, usize)>,
    refuses: AtomicBool,
}

impl Api for Master {
    fn call(&self, call: Call) -> Answer<'_, Bytes> {
        assert_eq!(call.path, "/api/v1/namespaces/a/configmaps/m");
        let mut object = self.object.lock().unwrap();
        object.1 += 1;
        let answer = match &object.0 {
            Some(object) => Ok(object.to_string().into()),
            None => Err(ApiError::from_answer(404, b"")),
        };
        Box::pin(async move { answer })
    }

    fn watch(&self, path: String) -> Answer<'_, Lines> {
        if self.refuses.load(Ordering::SeqCst) {
            return Box::pin(async { Err(ApiError::from_answer(429, b"")) });
        }
        let (lines, receiver) = mpsc::unbounded_channel();
        drop(self.watches.send(Opened { path, lines }));
        Box::pin(async move {
            let lines = stream::unfold(receiver, |mut receiver| async move {
                let line: Line = receiver.recv().await?;
                Some((line, receiver))
            });
            Ok(Box::pin(lines) as Lines)
        })
    }
}

struct Scene {
    master: Arc<Master>,
    watches: mpsc::UnboundedReceiver<Opened>,
    watched: Watched,
    changed: Arc<AtomicBool>,
    news: Arc<Notify>,
}

fn name(name: &str) -> Name {
    let (kind, namespace, name) = (ObjectKind::ConfigMap, "a".to_owned(), name.to_owned());
    Name {
        kind,
        namespace,
        name,
    }
}

fn map(version: &str, text: &str) -> Value {
    json!({"metadata": {"name": "m", "resourceVersion": version}, "data": {"k": text}})
}

impl Scene {
    fn new() -> Self {
        let (sender, watches) = mpsc::unbounded_channel();
        let master = Arc::new(Master {
            watches: sender,
            object: Mutex::default(),
            refuses: AtomicBool::default(),
        });
        Self {
            watched: Watched::new(master.clone()),
            master,
            watches,
            changed: Arc::default(),
            news: Arc::default(),
        }
    }

    fn follow(&self, names: &[&str]) -> Use {
        let names = names.iter().map(|text| name(text)).collect();
        self.watched.follow(names, &self.changed, &self.news)
    }

    /// As a pod does that names more objects than there are watches.
    fn follow_all(&self, prefix: &str) -> Use {
        let all = (0..=MOST).map(|number| format!("{prefix}-{number:03}"));
        let all: Vec<String> = all.collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        self.follow(&all)
    }

    fn watches(&self) -> usize {
        self.watched.0.state().watches()
    }

    async fn opened(&mut self) -> Opened {
        self.watches.recv().await.unwrap()
    }

    /// Waits until a change was reported to users.
    async fn notified(&self) {
        self.news.notified().await;
        assert!(self.changed.swap(false, Ordering::SeqCst));
    }

    async fn read(&self) -> Option<Value> {
        self.watched.read(&name("m")).await.unwrap()
    }

    fn has(&self, object: Value) {
        self.master.object.lock().unwrap().0 = Some(object);
    }

    fn asked(&self) -> usize {
        self.master.object.lock().unwrap().1
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_is_read_from_its_watch_and_its_users_are_notified() {
    let mut scene = Scene::new();
    let used = scene.follow(&["m"]);
    let watch = scene.opened().await;
    assert!(
        watch.path.starts_with(
            "/api/v1/namespaces/a/configmaps?fieldSelector=metadata.name%3Dm&watch=true"
        ) && watch.path.contains("sendInitialEvents=true"),
        "{}",
        watch.path
    );
    watch.tell("ADDED", &map("5", "one"));
    watch.begun("6");
    scene.notified().await;
    watch.tell("MODIFIED", &map("7", "two"));
    scene.notified().await;
    assert_eq!(scene.read().await, Some(map("7", "two")));
    watch.tell("DELETED", &map("8", "two"));
    scene.notified().await;
    assert_eq!(scene.read().await, None);
    assert_eq!(scene.asked(), 0, "nothing but the watch");
    drop(used);
    watch.lines.closed().await;
    assert_eq!(scene.watched.0.state().size, 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_older_than_what_was_read_is_no_news() {
    let mut scene = Scene::new();
    let _used = scene.follow(&["m"]);
    let watch = scene.opened().await;
    scene.has(map("9", "new"));
    assert!(scene.watched.ask(&name("m")).await.unwrap().is_some());
    scene.notified().await;
    watch.tell("ADDED", &map("5", "old"));
    watch.begun("6");
    watch.tell("MODIFIED", &map("10", "newest"));
    scene.notified().await;
    assert_eq!(scene.read().await, Some(map("10", "newest")));
}

#[tokio::test(start_paused = true)]
async fn that_an_object_is_not_there_yet_is_no_news_and_that_it_comes_is() {
    let mut scene = Scene::new();
    let _used = scene.follow(&["m"]);
    let watch = scene.opened().await;
    watch.begun("6");
    while !scene.watched.0.state().entries[&name("m")].live {
        tokio::task::yield_now().await;
    }
    assert!(
        !scene.changed.load(Ordering::SeqCst),
        "who asked knows that"
    );
    watch.tell("ADDED", &map("7", "one"));
    scene.notified().await;
    watch.tell("DELETED", &map("8", "one"));
    scene.notified().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_from_where_it_was_and_begins_anew_where_it_cannot() {
    let mut scene = Scene::new();
    let _used = scene.follow(&["m"]);
    // Cut off before the end of its beginning.
    scene.opened().await.tell("ADDED", &map("5", "one"));
    let watch = scene.opened().await;
    assert!(watch.path.contains("sendInitialEvents=true"));
    watch.begun("6");
    watch.tell("BOOKMARK", &json!({"metadata": {"resourceVersion": "11"}}));
    drop(watch);
    let watch = scene.opened().await;
    assert!(
        watch.path.ends_with("&resourceVersion=11"),
        "{}",
        watch.path
    );
    let broken = ApiError::Transport("the connection is broken".into());
    watch.lines.send(Err(broken)).unwrap();
    let watch = scene.opened().await;
    assert!(
        watch.path.ends_with("&resourceVersion=11"),
        "{}",
        watch.path
    );
    // Absent since the second beginning; the master's absence changes nothing about that.
    assert_eq!(scene.read().await, None);
    watch.tell("ERROR", &json!({"code": 410}));
    let watch = scene.opened().await;
    assert!(watch.path.contains("sendInitialEvents=true"));
    assert_eq!(scene.asked(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_watched_is_asked_for() {
    let mut scene = Scene::new();
    scene.master.refuses.store(true, Ordering::SeqCst);
    scene.has(map("5", "one"));
    let _used = scene.follow(&["m"]);
    assert_eq!(scene.read().await, Some(map("5", "one")));
    assert_eq!(scene.read().await, Some(map("5", "one")));
    assert_eq!(scene.asked(), 2);
    scene.master.refuses.store(false, Ordering::SeqCst);
    let watch = scene.opened().await;
    watch.tell("ADDED", &map("6", "two"));
    watch.begun("6");
    let live = async {
        while scene.read().await != Some(map("6", "two")) {
            tokio::task::yield_now().await;
        }
    };
    timeout(REFUSED, live).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_immutable_object_is_watched_no_longer() {
    let mut scene = Scene::new();
    let _used = scene.follow(&["m"]);
    let mut object = map("5", "one");
    object["immutable"] = json!(true);
    let watch = scene.opened().await;
    watch.tell("ADDED", &object);
    watch.lines.closed().await;
    scene.notified().await;
    assert_eq!(scene.read().await, Some(object));
    assert_eq!(scene.asked(), 0);
    assert!(timeout(REFUSED, scene.opened()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn watches_and_what_is_kept_have_limits() {
    let mut scene = Scene::new();
    let mut used = scene.follow_all("m");
    for _ in 0..10 {
        assert_eq!(scene.watches(), MOST / 2);
        used = scene.follow_all("m");
    }
    let others = ["n", "o", "p", "q", "r", "s", "t", "u", "v"];
    let others = others.map(|prefix| scene.follow_all(prefix));
    assert_eq!(scene.watches(), MOST);
    drop((used, others));
    let _used = scene.follow(&["m"]);
    let watch = loop {
        let watch = scene.opened().await;
        if watch.path.contains("%3Dm&") {
            break watch;
        }
    };
    let large = map("5", &"x".repeat(ROOM));
    watch.tell("ADDED", &large);
    watch.begun("5");
    scene.notified().await;
    assert_eq!(scene.watched.0.state().size, 0);
    scene.has(large.clone());
    assert_eq!(scene.read().await, Some(large));
    assert_eq!(scene.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn pods_that_name_the_same_objects_in_turns_leave_half_of_the_watches() {
    let scene = Scene::new();
    let mut pods = [scene.follow_all("m"), scene.follow_all("m")];
    for turn in 0..10 {
        assert_eq!(scene.watches(), MOST / 2, "turn {turn}");
        // The use that is replaced goes after the new one is there.
        pods[turn % 2] = scene.follow_all("m");
    }
    let other = scene.follow_all("n");
    assert_eq!(scene.watches(), MOST / 2 + MOST / 4);
    drop((pods, other));
    assert_eq!(scene.watches(), 0);
}
