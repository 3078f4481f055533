use super::*;
use agent_api::events::{SERVICE_PROXY, write};
use agent_api::{Answer, Api, ApiError, Call, Lines};
use bytes::Bytes;
use config_kube::k8s_openapi::api::core::v1::Event;
use http::Method;
use std::sync::{Arc, Mutex, PoisonError};

/// A master that takes every event.
#[derive(Debug, Default)]
struct Master(Mutex<Vec<(Method, Bytes)>>);

impl Master {
    fn asked(&self) -> Vec<(Method, Bytes)> {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut asked)
    }
}

impl Api for Master {
    fn call(&self, call: Call) -> Answer<'_, Bytes> {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.push((call.method, call.body));
        Box::pin(std::future::ready(Ok(Bytes::from_static(b"{}"))))
    }

    fn watch(&self, _: String) -> Answer<'_, Lines> {
        Box::pin(std::future::ready(Err(ApiError::Transport(
            "nothing is watched".into(),
        ))))
    }
}

fn key(name: &str) -> Arc<Key> {
    Arc::new(Key {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
    })
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_left_out_gets_an_event_and_repetitions_are_counted() {
    let view: View = View::default();
    let service = Service {
        uid: "u1".to_owned(),
        ..Service::default()
    };
    view.change(
        |_| true,
        |known| known.services = Some([(key("web"), Arc::new(service))].into()),
    );
    let closed = LeftOut {
        namespaces: [("shop".to_owned(), vec![key("web"), key("gone")])].into(),
        ..LeftOut::default()
    };
    let (sender, left_out) = watch::channel(LeftOut::default());
    let (recorder, queue) = Recorder::of_component(SERVICE_PROXY);
    let master = Arc::new(Master::default());
    let writing = tokio::spawn(write(queue, master.clone(), "n1".to_owned()));
    let telling = tokio::spawn(tell(left_out, view, recorder, "n1".to_owned()));
    // The clock goes on once all tasks wait.
    let settled = || tokio::time::sleep(2 * PAUSE);
    settled().await;
    assert!(master.asked().is_empty(), "nothing is left out");
    sender.send_replace(closed.clone());
    settled().await;
    let asked = master.asked();
    let [(Method::POST, body)] = asked.as_slice() else {
        unreachable!("{asked:?}")
    };
    let event: Event = serde_json::from_slice(body).unwrap();
    let about = event.involved_object;
    assert_eq!(
        [about.kind, about.namespace, about.name, about.uid].map(Option::unwrap),
        ["Service", "shop", "web", "u1"]
    );
    assert_eq!(event.reason.as_deref(), Some(REASON));
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(
        event.source.unwrap().component.as_deref(),
        Some("kube-proxy")
    );
    assert!(event.message.unwrap().contains("node n1 does not serve"));
    // Served again and left out again, ten times at once.
    for _ in 0..10 {
        sender.send_replace(LeftOut::default());
        tokio::task::yield_now().await;
        sender.send_replace(closed.clone());
        tokio::task::yield_now().await;
    }
    settled().await;
    sender.send_replace(LeftOut::default());
    settled().await;
    sender.send_replace(closed);
    settled().await;
    let asked: Vec<Method> = master
        .asked()
        .into_iter()
        .map(|(method, _)| method)
        .collect();
    assert!(
        (1..=2).contains(&asked.len()) && asked.iter().all(|one| *one == Method::PATCH),
        "{asked:?}"
    );
    drop(sender);
    telling.await.unwrap();
    writing.await.unwrap();
}
