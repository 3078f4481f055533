//! Images of a TLS registry that asks for credentials, in a real containerd: who gets them, and who
//! does not.

use super::upstream::{Authority, Reply, Seen, Upstream, serves};
use super::{keys, keys_of, pem};
use crate::site::Site;
use agent_images::{Credential, DOCKER_HUB, Keyring, PullPolicy, Registries, Registry, Secret};
use agent_runtime::{ContainerSpec, Containerd, ErrorClass, Runtime};
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use tests_harness::oci::{Entry, Image, digest};

/// Of `puller:hunter2`.
const BASIC: &str = "Basic cHVsbGVyOmh1bnRlcjI=";

/// A registry's answer to a known caller, and the challenge for others.
pub(super) fn basic(image: &Image, seen: &Seen) -> Reply {
    match seen.authorization.as_deref() {
        Some(BASIC) => serves(image, seen),
        _ => Reply::status(401).with("www-authenticate", "Basic realm=\"registry\""),
    }
}

pub(super) fn image() -> Arc<Image> {
    image_with(&[])
}

/// The image with more in its layer, which no engine of a test has before.
pub(super) fn image_with(entries: &[Entry<'_>]) -> Arc<Image> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap();
    let tools = tests_harness::tools::Tools::find(root).unwrap();
    let busybox = tests_harness::oci::find_busybox(Some(&tools)).unwrap();
    Arc::new(Image::with(&busybox, entries).unwrap())
}

fn agent(site: &Site, authority: &Authority, list: Vec<Registry>) -> Arc<Containerd> {
    site.agent_of(Registries::new(list, DOCKER_HUB, pem(authority)))
}

pub(super) fn known(upstream: &Upstream) -> Registry {
    Registry {
        host: upstream.host(),
        ..Registry::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_image_is_not_run_because_a_neighbour_pulled_it() {
    let (site, authority, image) = (Site::new(), Authority::new(), image());
    let registry = Upstream::tls(&authority, move |seen| basic(&image, seen)).await;
    let name = format!("{}/team/app:1", registry.host());
    let first = agent(&site, &authority, vec![known(&registry)]);
    let mine = keys(&registry.host(), "puller", "hunter2");
    let pulled = first
        .obtain_image(&name, PullPolicy::IfNotPresent, &mine)
        .await
        .unwrap();
    assert!(pulled.pulled);

    // The neighbours: without a secret, with one for another registry, with a wrong password.
    let elsewhere = keys_of("elsewhere", "other.example", "puller", "hunter2");
    let wrong = keys_of("wrong", &registry.host(), "puller", "guess");
    for keys in [Keyring::NONE, &elsewhere, &wrong] {
        let refused = first
            .obtain_image(&name, PullPolicy::IfNotPresent, keys)
            .await
            .unwrap_err();
        assert_eq!(refused.class, ErrorClass::ImagePull);
        assert!(
            refused.chain().contains("unauthorized") || refused.chain().contains("401"),
            "{}",
            refused.chain()
        );
        let never = first
            .obtain_image(&name, PullPolicy::Never, keys)
            .await
            .unwrap_err();
        assert_eq!(never.class, ErrorClass::ImageNeverPull);
        assert!(
            never.chain().contains("no pull secret"),
            "{}",
            never.chain()
        );
    }

    // The owner does not ask again, also under another agent; a neighbour whose own secret is good
    // asks once.
    let second = agent(&site, &authority, vec![known(&registry)]);
    let asked = registry.seen().len();
    second
        .obtain_image(&name, PullPolicy::Never, &mine)
        .await
        .unwrap();
    assert_eq!(registry.seen().len(), asked);
    let other = keys_of("other", &registry.host(), "puller", "hunter2");
    assert!(
        second
            .obtain_image(&name, PullPolicy::Never, &other)
            .await
            .is_err()
    );
    let shown = second
        .obtain_image(&name, PullPolicy::IfNotPresent, &other)
        .await
        .unwrap();
    assert!(
        !shown.pulled && shown.digest == pulled.digest,
        "it is there, and is not fetched again"
    );
    let asked = registry.seen().len();
    second
        .obtain_image(&name, PullPolicy::Never, &other)
        .await
        .unwrap();
    assert_eq!(registry.seen().len(), asked);

    // An attempt starts from the image that its pod was entitled to and from no other.
    let digest = Some(format!("sha256:{}", "0".repeat(64)));
    let spec = ContainerSpec {
        image: name.clone(),
        image_digest: digest,
        ..site.spec("swapped", "true")
    };
    let swapped = second.start(&spec).await.unwrap_err();
    assert_eq!(swapped.class, ErrorClass::Create);
    assert!(second.list(None).await.unwrap().is_empty());
    let log =
        std::fs::read_to_string(site.dir.path().join("engine/containerd.log")).unwrap_or_default();
    assert!(!log.contains("hunter2") && !log.contains(BASIC));
}

/// Digest and bytes.
type Blob = (String, Vec<u8>);

fn document(value: &Value) -> Blob {
    let bytes = value.to_string().into_bytes();
    (digest(&bytes), bytes)
}

/// Documents of a registry that lacks a private image, but names its parts by digest: the
/// manifest in an index, the configuration and the layer in a manifest, and what the layer unpacks
/// to in a configuration.
fn stolen(image: &Image) -> [(&'static str, Vec<Blob>); 3] {
    let [manifest, config, _] = image.blobs();
    let read = |bytes: &[u8]| -> Value { serde_json::from_slice(bytes).unwrap() };
    let named = json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": manifest.0, "size": manifest.1.len()});
    let index = document(&json!({"schemaVersion": 2, "manifests": [named]}));
    let mut own = read(&manifest.1);
    own["annotations"] = json!({"of": "the thief"});
    let parts = document(&own);
    let mut config = read(&config.1);
    config["author"] = "the thief".into();
    let config = document(&config);
    let layer = document(&json!("no layer at all"));
    own["config"]["digest"] = config.0.clone().into();
    own["config"]["size"] = config.1.len().into();
    own["layers"][0]["digest"] = layer.0.clone().into();
    own["layers"][0]["size"] = layer.1.len().into();
    let unpacked = document(&own);
    [
        ("index", vec![index]),
        ("parts", vec![parts]),
        ("unpacked", vec![unpacked, config, layer]),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_image_is_not_had_by_who_knows_its_digests() {
    let (site, authority, image) = (Site::new(), Authority::new(), image());
    let private = {
        let image = Arc::clone(&image);
        Upstream::tls(&authority, move |seen| basic(&image, seen)).await
    };
    let known_digests = stolen(&image);
    let thief = Upstream::tls(&authority, move |seen| {
        let has = known_digests
            .iter()
            .find(|(name, _)| seen.target.contains(&format!("/{name}/")));
        let (_, blobs) = has.expect("one of its images");
        let blob = blobs
            .iter()
            .find(|(digest, _)| seen.target.ends_with(digest));
        match blob {
            Some((_, bytes)) => Reply::ok(bytes.clone()),
            None if seen.target.ends_with("/1") => {
                let kind = "application/vnd.oci.image.manifest.v1+json";
                Reply::ok(blobs[0].1.clone()).with("content-type", kind)
            }
            None => Reply::ok("whatever it is"),
        }
    })
    .await;
    let open = {
        let image = Arc::clone(&image);
        Upstream::tls(&authority, move |seen| serves(&image, seen)).await
    };
    let agent = agent(
        &site,
        &authority,
        vec![known(&private), known(&thief), known(&open)],
    );
    let name = format!("{}/team/app:1", private.host());
    let mine = keys(&private.host(), "puller", "hunter2");
    let pulled = agent
        .obtain_image(&name, PullPolicy::Always, &mine)
        .await
        .unwrap();
    for image in ["index", "parts", "unpacked"] {
        let name = format!("{}/{image}/app:1", thief.host());
        for policy in [PullPolicy::Always, PullPolicy::Never] {
            let refused = agent.obtain_image(&name, policy, Keyring::NONE).await;
            let refused = refused.expect_err(image);
            let error = refused.chain();
            let why = ["is what was sent", "unpack layer", "not present"];
            assert!(
                why.iter().any(|why| error.contains(why)),
                "{image}: {error}"
            );
        }
    }
    // A registry that sends all of the bytes has the image, so pods may use it.
    let name = format!("{}/team/app:1", open.host());
    let shown = agent
        .obtain_image(&name, PullPolicy::Always, Keyring::NONE)
        .await
        .unwrap();
    assert_eq!(shown.digest, pulled.digest);
    assert_eq!(open.seen().len(), 3, "manifest, configuration, layer");
    let name = format!("{}/team/again:1", open.host());
    agent
        .obtain_image(&name, PullPolicy::Always, Keyring::NONE)
        .await
        .unwrap();
    assert_eq!(open.seen().len(), 4, "the manifest alone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_of_a_service_that_end_are_asked_anew_and_blobs_elsewhere_get_none() {
    let (site, authority, image) = (Site::new(), Authority::new(), image());
    let blobs = {
        let image = image.clone();
        Upstream::tls(&authority, move |seen| serves(&image, seen)).await
    };
    let (to, service) = (blobs.url(), Arc::new(OnceLock::<String>::new()));
    let tokens = Upstream::tls(&authority, |seen| {
        let refreshed = seen.method == "POST"
            && seen
                .body
                .contains("grant_type=refresh_token&client_id=pratique&service=test");
        let good = refreshed
            && seen
                .body
                .ends_with("&scope=repository%3Ateam%2Fapp%3Apull&refresh_token=hunter2");
        if good {
            Reply::ok("{\"access_token\": \"t\", \"expires_in\": 60}")
        } else {
            Reply::status(401)
        }
    })
    .await;
    service.set(format!("{}/token", tokens.url())).unwrap();
    let requests = std::sync::atomic::AtomicUsize::new(0);
    let registry = Upstream::tls(&authority, move |seen| {
        // Each token is good for one request.
        let number = requests.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if seen.authorization.as_deref() != Some("Bearer t") || number.is_multiple_of(2) {
            return Reply::bearer(service.get().unwrap());
        }
        if seen.target.contains("/blobs/") {
            Reply::redirect(format!("{to}{}", seen.target))
        } else {
            serves(&image, seen)
        }
    })
    .await;
    let credential = Some(Credential::IdentityToken(Secret::new("hunter2".to_owned())));
    let own = Registry {
        credential,
        token_hosts: vec![tokens.host()],
        ..known(&registry)
    };
    let agent = agent(&site, &authority, vec![own, known(&blobs)]);
    let name = format!("{}/team/app:1", registry.host());
    assert!(
        agent
            .ensure_image(&name, PullPolicy::Always)
            .await
            .unwrap()
            .pulled
    );
    assert_eq!(tokens.seen().len(), 3, "manifest, configuration, layer");
    assert_eq!(blobs.seen().len(), 2);
    assert_eq!(blobs.authorizations(), [""; 0]);
    // The machine's own credential is for all of its pods.
    agent.ensure_image(&name, PullPolicy::Never).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mirrors_are_asked_in_their_order_and_names_without_host_at_the_default_registry() {
    let (site, authority, image) = (Site::new(), Authority::new(), image());
    let broken = Upstream::tls(&authority, |_| Reply::status(500)).await;
    let good = Upstream::tls(&authority, move |seen| serves(&image, seen)).await;
    let hub = Registry {
        host: DOCKER_HUB.into(),
        mirrors: vec![broken.url(), good.url()],
        mirrors_only: true,
        ..Registry::default()
    };
    let agent = agent(&site, &authority, vec![hub]);
    let pulled = agent
        .ensure_image("nginx", PullPolicy::Always)
        .await
        .unwrap();
    assert_eq!(pulled.name, "docker.io/library/nginx:latest");
    let asked = |upstream: &Upstream| upstream.seen().first().map(|seen| seen.target.clone());
    assert_eq!(
        asked(&broken).as_deref(),
        Some("/v2/library/nginx/manifests/latest")
    );
    assert_eq!(asked(&good), asked(&broken));
    agent
        .ensure_image("docker.io/nginx:latest", PullPolicy::Never)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_that_is_another_or_longer_than_said_never_becomes_an_image() {
    let (site, authority, image) = (Site::new(), Authority::new(), image());
    for longer in [false, true] {
        let image = image.clone();
        let registry = Upstream::tls(&authority, move |seen| {
            let [.., (digest, mut layer)] = image.blobs();
            if !seen.target.ends_with(&digest) {
                return serves(&image, seen);
            }
            layer[0] ^= 1;
            layer.extend(longer.then_some(0));
            Reply::ok(layer)
        })
        .await;
        let agent = agent(&site, &authority, vec![known(&registry)]);
        let name = format!("{}/team/app:1", registry.host());
        let refused = agent
            .ensure_image(&name, PullPolicy::Always)
            .await
            .unwrap_err();
        assert_eq!(refused.class, ErrorClass::ImagePull, "{}", refused.chain());
        assert_eq!(
            agent
                .ensure_image(&name, PullPolicy::Never)
                .await
                .unwrap_err()
                .class,
            ErrorClass::ImageNeverPull
        );
    }
}

/// A frame of zstd (RFC 8878) of stored blocks, under a window that they do not need.
fn frame(window: u8, content: &[u8]) -> Vec<u8> {
    let mut all = vec![0x28, 0xB5, 0x2F, 0xFD, 0, window];
    let blocks = content.chunks(64 << 10);
    let last = blocks.len() - 1;
    for (number, block) in blocks.enumerate() {
        let header = (block.len() << 3) | usize::from(number == last);
        all.extend_from_slice(&header.to_le_bytes()[..3]);
        all.extend_from_slice(block);
    }
    all
}

/// An image whose one layer is this blob, which unpacks to `content`: manifest, configuration and
/// layer.
fn compressed(image: &Image, blob: Vec<u8>, content: &[u8]) -> [Blob; 3] {
    let [manifest, config, _] = image.blobs();
    let read = |bytes: &[u8]| -> Value { serde_json::from_slice(bytes).unwrap() };
    let mut config = read(&config.1);
    config["rootfs"]["diff_ids"][0] = digest(content).into();
    let config = document(&config);
    let mut manifest = read(&manifest.1);
    manifest["config"]["digest"] = config.0.clone().into();
    manifest["config"]["size"] = config.1.len().into();
    let (digest, size) = (digest(&blob), blob.len());
    let kind = "application/vnd.oci.image.layer.v1.tar+zstd";
    manifest["layers"][0] = json!({"mediaType": kind, "digest": digest, "size": size});
    [document(&manifest), config, (digest, blob)]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_that_takes_much_memory_to_unpack_is_refused_by_its_window() {
    let (site, authority) = (Site::new(), Authority::new());
    let image = image_with(&[Entry::Folder("by-zstd")]);
    let [.., (_, layer)] = image.blobs();
    // 32 MiB, and 512, the most that containerd takes: behind the end of the archive, where the
    // engine reads on and keeps nothing.
    for (window, is_taken) in [(0x78, true), (0x98, false)] {
        let behind = [0; 4096];
        let content = [&layer[..], &behind].concat();
        let blob = [frame(0x50, &layer), frame(window, &behind)].concat();
        let blobs = compressed(&image, blob, &content);
        let layer_digest = blobs[2].0.clone();
        let registry = Upstream::tls(&authority, move |seen| {
            let asked = |blob: &&Blob| seen.target.ends_with(&blob.0);
            match blobs.iter().find(asked) {
                Some((_, bytes)) => Reply::ok(bytes.clone()),
                None => Reply::ok(blobs[0].1.clone())
                    .with("content-type", "application/vnd.oci.image.manifest.v1+json"),
            }
        })
        .await;
        let agent = agent(&site, &authority, vec![known(&registry)]);
        let name = format!("{}/team/app:1", registry.host());
        let pulled = agent.ensure_image(&name, PullPolicy::Always).await;
        let error = pulled.err().map(|error| error.chain());
        if is_taken {
            assert_eq!(error, None, "the positive control");
            continue;
        }
        let error = error.expect("it is refused");
        let words = format!("layer {layer_digest}: a zstd frame has a window of 536870912 bytes");
        assert!(
            error.contains(&words) && error.contains("33554432"),
            "{error}"
        );
        let never = agent.ensure_image(&name, PullPolicy::Never).await;
        assert_eq!(never.unwrap_err().class, ErrorClass::ImageNeverPull);
    }
}
