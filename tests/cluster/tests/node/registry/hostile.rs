//! Attacks of a registry, or of a user who may name one, through the machine's client.

use super::upstream::{Authority, Body, Reply, Upstream};
use super::{keys, pem};
use crate::site::eventually;
use agent_images::{DOCKER_HUB, Keyring, PullPolicy, Registries, Registry};
use agent_runtime::{Containerd, Options, Runtime};
use std::sync::Arc;
use tokio::task::JoinSet;

/// An agent with these registries. They answer before it asks containerd for anything; there is
/// none.
fn agent(
    list: Vec<Registry>,
    authority: Option<&Authority>,
) -> (tempfile::TempDir, Arc<Containerd>) {
    let dir = tempfile::tempdir().unwrap();
    let agent = Containerd::new(Options {
        socket: dir.path().join("containerd.sock"),
        state: dir.path().to_owned(),
        fifos: dir.path().join("io"),
        logs: dir.path().to_owned(),
        registries: Registries::new(list, DOCKER_HUB, authority.map(pem).unwrap_or_default()),
        programs: None,
        archives: Vec::new(),
    });
    (dir, Arc::new(agent))
}

/// A registry of this name, which is at its mirror alone.
fn mirrored(host: &str, upstream: &Upstream) -> Registry {
    let mirrors = vec![upstream.url()];
    Registry {
        host: host.to_owned(),
        mirrors,
        mirrors_only: true,
        insecure: true,
        ..Registry::default()
    }
}

/// A registry that the configuration knows by its address.
fn known(upstream: &Upstream) -> Registry {
    Registry {
        host: upstream.host(),
        ..Registry::default()
    }
}

async fn refused(agent: &Containerd, image: &str) -> String {
    refused_with(agent, image, Keyring::NONE).await
}

async fn refused_with(agent: &Containerd, image: &str, keys: &Keyring) -> String {
    agent
        .obtain_image(image, PullPolicy::Always, keys)
        .await
        .unwrap_err()
        .chain()
}

#[tokio::test]
async fn a_redirect_to_an_address_of_the_machine_is_not_followed() {
    let own = Upstream::plain(|_| Reply::ok("{\"keys\": \"of the cloud\"}")).await;
    let to = format!("{}/latest/meta-data/", own.url());
    let registry = Upstream::plain(move |_| Reply::redirect(to.clone())).await;
    let (_dir, agent) = agent(vec![mirrored("registry.example", &registry)], None);
    let error = refused(&agent, "registry.example/busybox:1").await;
    assert_eq!(own.seen(), [], "{error}");
    assert_eq!(registry.seen().len(), 1, "it was asked: {error}");
}

#[tokio::test]
async fn a_redirect_over_tls_reaches_the_machine_no_more_than_one_without() {
    let authority = Authority::new();
    let own = Upstream::tls(&authority, |_| Reply::ok("{}")).await;
    for to in [
        format!("{}/x", own.url()),
        "https://169.254.169.254/x".into(),
        "https://[::ffff:169.254.169.254]/x".into(),
    ] {
        let registry = Upstream::tls(&authority, move |_| Reply::redirect(to.clone())).await;
        let (_dir, agent) = agent(vec![known(&registry)], Some(&authority));
        let error = refused(&agent, &format!("{}/busybox:1", registry.host())).await;
        assert!(error.contains("only this machine can reach"), "{error}");
    }
    assert_eq!(own.seen(), []);
}

#[tokio::test]
async fn a_token_is_not_asked_of_an_address_of_the_machine() {
    let own = Upstream::plain(|_| Reply::ok("{\"token\": \"t\"}")).await;
    let realm = format!("{}/latest/api/token", own.url());
    let registry = Upstream::plain(move |_| Reply::bearer(&realm)).await;
    let (_dir, agent) = agent(vec![mirrored("registry.example", &registry)], None);
    let error = refused(&agent, "registry.example/busybox:1").await;
    assert_eq!(own.seen(), [], "{error}");
}

#[tokio::test]
async fn a_pod_author_cannot_aim_the_client_at_the_machine_itself() {
    let own = Upstream::plain(|_| Reply::ok("")).await;
    let (_dir, agent) = agent(Vec::new(), None);
    for host in [own.host(), "169.254.169.254".into(), "[::1]:1".into()] {
        let error = refused(&agent, &format!("{host}/busybox:1")).await;
        assert!(error.contains("only this machine can reach"), "{error}");
    }
}

#[tokio::test]
async fn a_registry_that_never_answers_holds_up_no_other_pod() {
    let silent = Upstream::plain(|_| Reply {
        body: Body::Silence,
        ..Reply::status(200)
    })
    .await;
    let other = Upstream::plain(|_| Reply::status(404)).await;
    let list = vec![
        mirrored("silent.example", &silent),
        mirrored("other.example", &other),
    ];
    let (_dir, agent) = agent(list, None);
    let mut waits = JoinSet::new();
    for number in 0..6 {
        let agent = agent.clone();
        let image = format!("silent.example/busybox:{number}");
        waits.spawn(async move { refused(&agent, &image).await });
    }
    eventually("the silent registry to be asked", || async {
        (silent.seen().len() >= 4).then_some(())
    })
    .await;
    tokio::select! {
        error = refused(&agent, "other.example/busybox:1") => assert!(error.contains("404"), "{error}"),
        error = waits.join_next() => panic!("the neighbour had to wait until {error:?}"),
    }
    assert_eq!(silent.seen().len(), 4, "pulls of one registry at a time");
}

#[tokio::test]
async fn a_token_service_elsewhere_gets_no_credential_unless_the_configuration_names_it() {
    let authority = Authority::new();
    let thief = Upstream::tls(&authority, |_| Reply::ok("{\"token\": \"t\"}")).await;
    let realm = format!("{}/token", thief.url());
    let registry = Upstream::tls(&authority, move |_| Reply::bearer(&realm)).await;
    let image = format!("{}/busybox:1", registry.host());
    let pod = keys(&registry.host(), "puller", "hunter2");

    // The thief's address is allowed: it is a registry, too.
    let list = vec![known(&registry), known(&thief)];
    let (_dir, agent) = agent(list, Some(&authority));
    let error = refused_with(&agent, &image, &pod).await;
    assert!(
        error.contains("unauthorized")
            && error.contains("token_hosts")
            && error.contains(&thief.host()),
        "{error}"
    );
    assert!(!error.contains("hunter2"), "{error}");
    assert_eq!(thief.seen(), []);

    let list = vec![Registry {
        token_hosts: vec![thief.host()],
        ..known(&registry)
    }];
    let (_dir, agent) = super::hostile::agent(list, Some(&authority));
    let error = refused_with(&agent, &image, &pod).await;
    assert_eq!(
        thief.authorizations(),
        ["Basic cHVsbGVyOmh1bnRlcjI="],
        "the positive control: {error}"
    );
    assert_eq!(
        registry.authorizations(),
        ["Bearer t"],
        "and the token alone comes to the registry"
    );
}

#[tokio::test]
async fn a_challenge_behind_a_redirect_gets_nothing_and_neither_does_its_host() {
    let authority = Authority::new();
    for challenge in ["basic", "bearer"] {
        let other = Upstream::tls(&authority, move |seen| {
            match (challenge, seen.target.as_str()) {
                ("basic", _) => Reply::status(401).with("www-authenticate", "Basic realm=\"x\""),
                (_, "/token") => Reply::ok("{\"token\": \"t\"}"),
                (_, _) => Reply::bearer("https://127.0.0.1:1/token"),
            }
        })
        .await;
        let to = format!("{}/v2/busybox/manifests/1", other.url());
        // The registry itself is content with a password, and only then leads away.
        let registry = Upstream::tls(&authority, move |seen| match &seen.authorization {
            Some(_) => Reply::redirect(to.clone()),
            None => Reply::status(401).with("www-authenticate", "Basic realm=\"x\""),
        })
        .await;
        let (_dir, agent) = agent(vec![known(&registry), known(&other)], Some(&authority));
        let pod = keys(&registry.host(), "puller", "hunter2");
        let error = refused_with(&agent, &format!("{}/busybox:1", registry.host()), &pod).await;
        assert!(error.contains("401"), "{error}");
        assert_eq!(registry.authorizations().len(), 1);
        assert_eq!(other.seen().len(), 1, "{error}");
        assert_eq!(other.authorizations(), [""; 0]);
    }
}

#[tokio::test]
async fn a_registry_that_always_asks_for_more_is_asked_twice() {
    let authority = Authority::new();
    let registry = Upstream::tls(&authority, |seen| {
        if seen.target.starts_with("/token") {
            return Reply::ok("{\"token\": \"t\", \"expires_in\": 1}");
        }
        Reply::status(401).with("www-authenticate", "Bearer realm=\"https://HOST/token\"")
    })
    .await;
    let (_dir, agent) = agent(vec![known(&registry)], Some(&authority));
    let pod = keys(&registry.host(), "puller", "hunter2");
    // The realm has no address of its own in this answer, so that the token service is not reached
    // at all.
    refused_with(&agent, &format!("{}/busybox:1", registry.host()), &pod).await;
    assert_eq!(registry.seen().len(), 1);

    let realm = Arc::new(std::sync::OnceLock::<String>::new());
    let sent_realm = realm.clone();
    let registry = Upstream::tls(&authority, move |seen| {
        if seen.target.starts_with("/token") {
            return Reply::ok("{\"token\": \"t\", \"expires_in\": 1}");
        }
        Reply::bearer(sent_realm.get().unwrap())
    })
    .await;
    realm.set(format!("{}/token", registry.url())).unwrap();
    let (_dir, agent) = super::hostile::agent(vec![known(&registry)], Some(&authority));
    let pod = keys(&registry.host(), "puller", "hunter2");
    let error = refused_with(&agent, &format!("{}/busybox:1", registry.host()), &pod).await;
    let asked: Vec<String> = registry
        .seen()
        .into_iter()
        .map(|seen| seen.target)
        .collect();
    assert_eq!(
        asked.len(),
        3,
        "manifest, token, manifest: {asked:?} {error}"
    );
    assert_eq!(
        asked[1],
        "/token?service=test&scope=repository%3Abusybox%3Apull"
    );
}

#[tokio::test]
async fn no_credential_is_sent_without_tls() {
    let registry =
        Upstream::plain(|_| Reply::status(401).with("www-authenticate", "Basic realm=\"x\"")).await;
    let (_dir, agent) = agent(
        vec![Registry {
            insecure: true,
            ..known(&registry)
        }],
        None,
    );
    let pod = keys(&registry.host(), "puller", "hunter2");
    let error = refused_with(&agent, &format!("{}/busybox:1", registry.host()), &pod).await;
    assert!(error.contains("never sent over plain http"), "{error}");
    assert_eq!(registry.authorizations(), [""; 0]);
    assert!(!registry.seen().is_empty());
}

#[tokio::test]
async fn answers_without_end_and_wrong_documents_are_refused_with_their_cause() {
    let endless = Upstream::plain(|_| Reply {
        body: Body::Endless,
        ..Reply::status(200)
    })
    .await;
    let wrong = Upstream::plain(|_| Reply::ok("{}")).await;
    let around = Upstream::plain(|_| Reply::redirect("/again".into())).await;
    let gone = Upstream::plain(|_| Reply {
        body: Body::Whole(br#"{"errors":[{"code":"MANIFEST_UNKNOWN"}]}"#.to_vec()),
        ..Reply::status(404)
    })
    .await;
    let denied = Upstream::plain(|_| Reply {
        body: Body::Whole(b"{\"errors\":[{\"code\":\"\\u001b[31m\"}]}".to_vec()),
        ..Reply::status(403)
    })
    .await;
    let list = [
        ("endless", &endless),
        ("wrong", &wrong),
        ("around", &around),
        ("gone", &gone),
        ("denied", &denied),
    ];
    let list = list.map(|(name, upstream)| mirrored(&format!("{name}.example"), upstream));
    let (_dir, agent) = agent(list.to_vec(), None);
    let digest = format!("sha256:{}", "0".repeat(64));
    for (image, words) in [
        ("endless.example/a:1", "is longer than 4194304 bytes"),
        (
            &*format!("wrong.example/a@{digest}"),
            "manifest digest mismatch: expected sha256:0000",
        ),
        ("around.example/a:1", "redirects more than 5 times"),
        ("gone.example/a:1", "404 Not Found (MANIFEST_UNKNOWN)"),
        ("denied.example/a:1", "answered 403 Forbidden"),
    ] {
        let error = refused(&agent, image).await;
        assert!(
            error.contains(words) && !error.contains('\u{1b}'),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_named_as_that() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let registry = Upstream::tls(&theirs, |_| Reply::ok("{}")).await;
    let (_dir, agent) = agent(vec![known(&registry)], Some(&ours));
    let error = refused(&agent, &format!("{}/busybox:1", registry.host())).await;
    assert!(
        error.contains("a certificate of an unknown authority"),
        "{error}"
    );
    assert_eq!(registry.seen(), []);
}
