//! Tokens and attacks on them: each refusal beside the permission that differs from it.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use crate::common::Local;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use master_api::{ApiServer, Options};
use master_auth::{TokenIssuer, TokenList};
use master_listener::Peer;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use serde_json::{Value, json};
use std::sync::Arc;

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
pub(crate) const PODS: &str = "/api/v1/namespaces/default/pods";
const WHOAMI: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

pub(crate) fn key() -> Vec<u8> {
    EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
        .unwrap()
        .as_ref()
        .to_vec()
}

/// A server with a known key, a service account `robot`, a node and a pod of this account on it.
pub(crate) async fn cluster(signing: &[u8]) -> Local {
    let issuer = TokenIssuer::new(None, &[], signing, &[]).unwrap();
    let tokens =
        TokenList::parse("fixed-token,alice,u1,\"system:masters\"\nplain-token,bob,u2\n").unwrap();
    let server = Local::with(Options {
        issuer: Some(Arc::new(issuer)),
        tokens,
        ..Options::default()
    })
    .await;
    made(&server, ACCOUNTS, json!({"metadata": {"name": "robot"}})).await;
    made(
        &server,
        "/api/v1/nodes",
        json!({"metadata": {"name": "n1"}}),
    )
    .await;
    made(&server, PODS, pod()).await;
    server
}

pub(crate) fn pod() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {
        "nodeName": "n1", "serviceAccountName": "robot", "containers": [{"name": "c", "image": "x:1"}],
    }})
}

pub(crate) async fn made(server: &Local, path: &str, object: Value) -> Value {
    let (status, answer) = server.admin_ask(Method::POST, path, &object).await;
    assert_eq!(status, StatusCode::CREATED, "{path}: {answer}");
    answer
}

/// Sends a request with a token, through the same path as a connection's.
async fn ask(
    server: &Local,
    token: &str,
    method: Method,
    path: &str,
    body: &Value,
) -> (StatusCode, Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json");
    let request = request.header("authorization", format!("Bearer {token}"));
    let response = server
        .api
        .handle(
            request.body(master_client::body(body.to_string())).unwrap(),
            Peer::default(),
        )
        .await;
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

pub(crate) async fn whoami(server: &Local, token: &str) -> (StatusCode, Value) {
    let (status, answer) = ask(server, token, Method::POST, WHOAMI, &json!({})).await;
    (status, answer["status"]["userInfo"].clone())
}

async fn request(server: &Local, spec: Value) -> (StatusCode, Value) {
    server
        .admin_ask(
            Method::POST,
            &format!("{ACCOUNTS}/robot/token"),
            &json!({"spec": spec}),
        )
        .await
}

pub(crate) async fn token(server: &Local, spec: Value) -> String {
    let (status, answer) = request(server, spec).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    answer["status"]["token"].as_str().unwrap().to_owned()
}

async fn uid(server: &Local, path: &str) -> Value {
    server.admin_ask(Method::GET, path, &Value::Null).await.1["metadata"]["uid"].clone()
}

fn claims_of(token: &str) -> Value {
    serde_json::from_slice(
        &URL_SAFE_NO_PAD
            .decode(token.split('.').nth(1).unwrap())
            .unwrap(),
    )
    .unwrap()
}

fn forged(signing: &[u8], header: &Value, claims: &Value) -> String {
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", encode(header), encode(claims));
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, signing, &random).unwrap();
    format!(
        "{text}.{}",
        URL_SAFE_NO_PAD.encode(key.sign(&random, text.as_bytes()).unwrap())
    )
}

#[tokio::test]
async fn a_requested_token_names_its_account_and_bound_object() {
    let server = cluster(&key()).await;
    let (pod_uid, node_uid) = (
        uid(&server, &format!("{PODS}/p")).await,
        uid(&server, "/api/v1/nodes/n1").await,
    );
    let bound = token(
        &server,
        json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p"}}),
    )
    .await;
    let (status, user) = whoami(&server, &bound).await;
    assert_eq!(status, StatusCode::CREATED);
    assert_eq!(user["username"], "system:serviceaccount:default:robot");
    assert_eq!(
        user["uid"],
        uid(&server, &format!("{ACCOUNTS}/robot")).await
    );
    assert_eq!(
        user["groups"],
        json!([
            "system:serviceaccounts",
            "system:serviceaccounts:default",
            "system:authenticated"
        ])
    );
    let claims = claims_of(&bound);
    let extra = &user["extra"];
    assert_eq!(extra["authentication.kubernetes.io/pod-name"], json!(["p"]));
    assert_eq!(
        extra["authentication.kubernetes.io/pod-uid"],
        json!([pod_uid])
    );
    assert_eq!(
        extra["authentication.kubernetes.io/node-name"],
        json!(["n1"])
    );
    assert_eq!(
        extra["authentication.kubernetes.io/node-uid"],
        json!([node_uid])
    );
    let id = format!("JTI={}", claims["jti"].as_str().unwrap());
    assert_eq!(
        extra["authentication.kubernetes.io/credential-id"],
        json!([id])
    );
    assert_eq!(claims["iss"], ISSUER);
    assert_eq!(
        claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(),
        3600
    );
    assert_eq!(
        ask(&server, &bound, Method::GET, PODS, &Value::Null)
            .await
            .0,
        StatusCode::FORBIDDEN
    );
}

#[tokio::test]
async fn requests_for_tokens_are_held_to_upstreams_rules() {
    let server = cluster(&key()).await;
    made(&server, ACCOUNTS, json!({"metadata": {"name": "other"}})).await;
    let reference = |uid: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid}});
    for (spec, code, words) in [
        (
            json!({"expirationSeconds": 599}),
            422,
            "may not specify a duration less than 10 minutes",
        ),
        (
            json!({"expirationSeconds": 4_294_967_297_i64}),
            422,
            "may not specify a duration larger than 2^32 seconds",
        ),
        (
            reference("of-another"),
            409,
            "does not match the UID in record",
        ),
        (
            json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "gone"}}),
            404,
            "not found",
        ),
        (
            json!({"boundObjectRef": {"apiVersion": "v1", "kind": "ConfigMap", "name": "p"}}),
            400,
            "cannot bind token",
        ),
        (json!({"audiences": 1}), 400, "cannot be handled"),
    ] {
        let (status, answer) = request(&server, spec.clone()).await;
        assert_eq!(status.as_u16(), code, "{spec}: {answer}");
        assert!(
            answer["message"].as_str().unwrap().contains(words),
            "{answer}"
        );
    }
    let other = format!("{ACCOUNTS}/other/token");
    let (status, answer) = server
        .admin_ask(Method::POST, &other, &json!({"spec": reference("")}))
        .await;
    assert_eq!(
        status,
        StatusCode::BAD_REQUEST,
        "a pod of another account: {answer}"
    );
    let gone = format!("{ACCOUNTS}/gone/token");
    assert_eq!(
        server
            .admin_ask(Method::POST, &gone, &json!({"spec": {}}))
            .await
            .0,
        StatusCode::NOT_FOUND
    );
}

/// The header of a token that the cluster's key signs.
fn header() -> Value {
    json!({"alg": "ES256"})
}

/// Tokens of the right form that claim something else, and one by another key.
fn forged_claims(signing: &[u8], claims: &Value) -> Vec<(&'static str, String)> {
    let change = |key: &str, value: Value| {
        let mut claims = claims.clone();
        claims[key] = value;
        claims
    };
    let now = claims["iat"].as_i64().unwrap();
    let mut named = claims.clone();
    named["kubernetes.io"]["serviceaccount"]["uid"] = "another".into();
    vec![
        ("other signer", forged(&key(), &header(), claims)),
        (
            "a key of another name",
            forged(signing, &json!({"alg": "ES256", "kid": "x"}), claims),
        ),
        (
            "expired",
            forged(signing, &header(), &change("exp", (now - 1).into())),
        ),
        (
            "not yet",
            forged(signing, &header(), &change("nbf", (now + 600).into())),
        ),
        (
            "audience",
            forged(signing, &header(), &change("aud", json!(["vault"]))),
        ),
        (
            "no audience",
            forged(signing, &header(), &change("aud", json!([]))),
        ),
        (
            "subject",
            forged(
                signing,
                &header(),
                &change("sub", "system:serviceaccount:kube-system:robot".into()),
            ),
        ),
        ("uid", forged(signing, &header(), &named)),
        (
            "issuer",
            forged(
                signing,
                &header(),
                &change("iss", "https://evil.example".into()),
            ),
        ),
    ]
}

/// Tokens that are signed otherwise, or not at all, or are of another kind.
fn forged_forms(signing: &[u8], good: &str, claims: &Value) -> Vec<(&'static str, String)> {
    vec![
        ("alg none", forged(signing, &json!({"alg": "none"}), claims)),
        (
            "alg HS256",
            forged(signing, &json!({"alg": "HS256", "kid": "x"}), claims),
        ),
        (
            "no signature",
            format!("{}.", good.rsplit_once('.').unwrap().0),
        ),
        ("cut", good[..good.len() - 2].to_owned()),
        ("nonsense", "nonsense".to_owned()),
        (
            "legacy without secret",
            forged(
                signing,
                &header(),
                &json!({
                    "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:default:robot",
                    "kubernetes.io/serviceaccount/namespace": "default",
                    "kubernetes.io/serviceaccount/secret.name": "none",
                    "kubernetes.io/serviceaccount/service-account.name": "robot",
                    "kubernetes.io/serviceaccount/service-account.uid": claims["kubernetes.io"]["serviceaccount"]["uid"],
                }),
            ),
        ),
    ]
}

#[tokio::test]
async fn forged_and_foreign_tokens_are_refused() {
    let signing = key();
    let server = cluster(&signing).await;
    let good = token(&server, json!({})).await;
    assert_eq!(whoami(&server, &good).await.0, StatusCode::CREATED);
    let claims = claims_of(&good);
    assert_eq!(
        whoami(&server, &forged(&signing, &header(), &claims))
            .await
            .0,
        StatusCode::CREATED,
        "the key is known"
    );
    let attacks = forged_claims(&signing, &claims)
        .into_iter()
        .chain(forged_forms(&signing, &good, &claims));
    for (what, attack) in attacks {
        let (status, answer) = ask(&server, &attack, Method::GET, "/version", &Value::Null).await;
        assert_eq!(
            status,
            StatusCode::UNAUTHORIZED,
            "{what}: even where anonymous may: {answer}"
        );
        assert_eq!(
            answer["message"], "Unauthorized",
            "{what}: a stranger learns nothing"
        );
    }
    let elsewhere = cluster(&key()).await;
    let foreign = token(&elsewhere, json!({})).await;
    assert_eq!(
        whoami(&server, &foreign).await.0,
        StatusCode::UNAUTHORIZED,
        "another cluster's"
    );
}

#[tokio::test]
async fn a_token_is_invalid_after_its_bound_object_is_deleted() {
    let server = cluster(&key()).await;
    let of_pod = token(
        &server,
        json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p"}}),
    )
    .await;
    let of_node = token(
        &server,
        json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": "n1"}}),
    )
    .await;
    let of_account = token(&server, json!({})).await;
    for token in [&of_pod, &of_node, &of_account] {
        assert_eq!(whoami(&server, token).await.0, StatusCode::CREATED);
    }
    let now = json!({"gracePeriodSeconds": 0});
    assert_eq!(
        server
            .admin_ask(Method::DELETE, &format!("{PODS}/p"), &now)
            .await
            .0,
        StatusCode::OK
    );
    assert_eq!(whoami(&server, &of_pod).await.0, StatusCode::UNAUTHORIZED);
    made(&server, PODS, pod()).await;
    assert_eq!(
        whoami(&server, &of_pod).await.0,
        StatusCode::UNAUTHORIZED,
        "another pod of that name"
    );
    assert_eq!(
        server
            .admin_ask(Method::DELETE, "/api/v1/nodes/n1", &now)
            .await
            .0,
        StatusCode::OK
    );
    assert_eq!(whoami(&server, &of_node).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(whoami(&server, &of_account).await.0, StatusCode::CREATED);
    assert_eq!(
        server
            .admin_ask(Method::DELETE, &format!("{ACCOUNTS}/robot"), &Value::Null)
            .await
            .0,
        StatusCode::OK
    );
    assert_eq!(
        whoami(&server, &of_account).await.0,
        StatusCode::UNAUTHORIZED
    );
    made(&server, ACCOUNTS, json!({"metadata": {"name": "robot"}})).await;
    assert_eq!(
        whoami(&server, &of_account).await.0,
        StatusCode::UNAUTHORIZED,
        "another account of that name"
    );
}

#[tokio::test]
async fn a_legacy_token_is_valid_while_its_secret_holds_it() {
    let signing = key();
    let server = cluster(&signing).await;
    let account = uid(&server, &format!("{ACCOUNTS}/robot")).await;
    let issuer = TokenIssuer::new(None, &[], &signing, &[]).unwrap();
    let old = issuer
        .legacy_token("default", "kept", "robot", account.as_str().unwrap())
        .unwrap();
    assert_eq!(whoami(&server, &old).await.0, StatusCode::UNAUTHORIZED);
    let secret = json!({
        "metadata": {"name": "kept", "annotations": {"kubernetes.io/service-account.name": "robot"}},
        "type": "kubernetes.io/service-account-token", "data": {"token": STANDARD.encode(&old)},
    });
    made(&server, "/api/v1/namespaces/default/secrets", secret).await;
    let (status, user) = whoami(&server, &old).await;
    assert_eq!(
        (status, &user["username"]),
        (
            StatusCode::CREATED,
            &"system:serviceaccount:default:robot".into()
        )
    );
    server
        .admin_ask(
            Method::DELETE,
            "/api/v1/namespaces/default/secrets/kept",
            &Value::Null,
        )
        .await;
    assert_eq!(whoami(&server, &old).await.0, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn audiences_are_the_reviewers_to_name() {
    let server = cluster(&key()).await;
    let vault = token(&server, json!({"audiences": ["vault", "bank"]})).await;
    assert_eq!(
        whoami(&server, &vault).await.0,
        StatusCode::UNAUTHORIZED,
        "not for the API"
    );
    let review =
        |token: &str, audiences: Value| json!({"spec": {"token": token, "audiences": audiences}});
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let (status, answer) = server
        .admin_ask(
            Method::POST,
            path,
            &review(&vault, json!(["vault", "other"])),
        )
        .await;
    assert_eq!(status, StatusCode::CREATED);
    assert_eq!(answer["status"]["authenticated"], true, "{answer}");
    assert_eq!(answer["status"]["audiences"], json!(["vault"]));
    assert_eq!(
        answer["status"]["user"]["username"],
        "system:serviceaccount:default:robot"
    );
    let (_, answer) = server
        .admin_ask(Method::POST, path, &review(&vault, json!([])))
        .await;
    assert_ne!(answer["status"]["authenticated"], true);
    assert!(
        answer["status"]["error"]
            .as_str()
            .unwrap()
            .contains("audiences"),
        "{answer}"
    );
    let (_, answer) = server
        .admin_ask(Method::POST, path, &review("nonsense", json!([])))
        .await;
    assert_eq!(answer["status"]["authenticated"], false);
    assert_eq!(
        server
            .admin_ask(Method::POST, path, &review("", json!([])))
            .await
            .0,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(
        server.admin_ask(Method::GET, path, &Value::Null).await.0,
        StatusCode::METHOD_NOT_ALLOWED
    );
}

#[tokio::test]
async fn a_node_gets_the_tokens_that_volumes_of_its_pods_ask_for_and_no_others() {
    let server = cluster(&key()).await;
    // Beside `p`, which has the volume of the API's token that every pod gets.
    let mut silent = pod();
    silent["metadata"]["name"] = "silent".into();
    silent["spec"]["automountServiceAccountToken"] = false.into();
    let source = json!({"serviceAccountToken": {"audience": "vault", "path": "token"}});
    silent["spec"]["volumes"] = json!([{"name": "v", "projected": {"sources": [source]}}]);
    made(&server, PODS, silent).await;
    let node = crate::authorization::node("n1");
    for (name, audiences, code) in [
        ("p", json!([]), 201),
        ("p", json!(["vault"]), 403),
        ("silent", json!(["vault"]), 201),
        ("silent", json!([]), 403),
        ("silent", json!([""]), 403),
        ("silent", json!([ISSUER]), 403),
        ("silent", json!(["vault", ISSUER]), 403),
    ] {
        let own = uid(&server, &format!("{PODS}/{name}")).await;
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": own});
        let spec =
            json!({"audiences": audiences, "expirationSeconds": 3607, "boundObjectRef": bound});
        let (path, body) = (format!("{ACCOUNTS}/robot/token"), json!({"spec": spec}));
        let (status, answer) = server.ask(&node, Method::POST, &path, &body).await;
        assert_eq!(status.as_u16(), code, "{name} {audiences}: {answer}");
    }
}

#[tokio::test]
async fn fixed_and_bootstrap_tokens_are_known() {
    let server = cluster(&key()).await;
    assert_eq!(whoami(&server, "plain-token").await.1["username"], "bob");
    assert_eq!(
        ask(
            &server,
            "fixed-token",
            Method::GET,
            "/api/v1/nodes",
            &Value::Null
        )
        .await
        .0,
        StatusCode::OK
    );
    assert_eq!(
        ask(
            &server,
            "plain-token",
            Method::GET,
            "/api/v1/nodes",
            &Value::Null
        )
        .await
        .0,
        StatusCode::FORBIDDEN
    );
    let bootstrap = "abcdef.0123456789abcdef";
    assert_eq!(whoami(&server, bootstrap).await.0, StatusCode::UNAUTHORIZED);
    let data = json!({
        "token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
    });
    let secret = json!({
        "metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token", "stringData": data,
    });
    made(&server, "/api/v1/namespaces/kube-system/secrets", secret).await;
    let (_, user) = whoami(&server, bootstrap).await;
    assert_eq!(user["username"], "system:bootstrap:abcdef");
    assert_eq!(
        user["groups"],
        json!(["system:bootstrappers", "system:authenticated"])
    );
    assert_eq!(
        whoami(&server, "abcdef.0123456789abcdee").await.0,
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn the_issuers_keys_are_served_to_authorized_callers() {
    let server = cluster(&key()).await;
    let robot = token(&server, json!({})).await;
    let (status, keys) = ask(
        &server,
        &robot,
        Method::GET,
        "/openid/v1/jwks",
        &Value::Null,
    )
    .await;
    assert_eq!(status, StatusCode::OK);
    let header: Value = serde_json::from_slice(
        &URL_SAFE_NO_PAD
            .decode(robot.split('.').next().unwrap())
            .unwrap(),
    )
    .unwrap();
    assert_eq!(keys["keys"][0]["kid"], header["kid"]);
    assert_eq!(keys["keys"][0]["alg"], "ES256");
    let (_, document) = ask(
        &server,
        &robot,
        Method::GET,
        "/.well-known/openid-configuration",
        &Value::Null,
    )
    .await;
    assert_eq!(document["issuer"], ISSUER);
    assert_eq!(document["jwks_uri"], format!("{ISSUER}/openid/v1/jwks"));
    let (status, _) = ask(
        &server,
        "plain-token",
        Method::GET,
        "/openid/v1/jwks",
        &Value::Null,
    )
    .await;
    assert_eq!(status, StatusCode::FORBIDDEN, "service accounts only");
}

#[tokio::test]
async fn a_retired_key_still_verifies_its_tokens() {
    let (old, new) = (key(), key());
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(master_store::EmbeddedStore::open(folder.path()).unwrap());
    let issuer = |signing: &[u8], retired: &[Vec<u8>]| {
        let issuer = TokenIssuer::new(None, &[], signing, retired).unwrap();
        Options {
            issuer: Some(Arc::new(issuer)),
            ..Options::default()
        }
    };
    let server = Local::of(ApiServer::new(store.clone(), issuer(&old, &[])), folder);
    server.api.prepare().await.unwrap();
    made(&server, ACCOUNTS, json!({"metadata": {"name": "robot"}})).await;
    let signed = token(&server, json!({})).await;
    let random = SystemRandom::new();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &old, &random).unwrap();
    let point = ring::signature::KeyPair::public_key(&pair)
        .as_ref()
        .to_vec();
    let mut spki = hex::decode("3059301306072a8648ce3d020106082a8648ce3d030107034200").unwrap();
    spki.extend(point);
    let next = Local::of(
        ApiServer::new(store, issuer(&new, &[spki])),
        tempfile::tempdir().unwrap(),
    );
    assert_eq!(whoami(&next, &signed).await.0, StatusCode::CREATED);
    let fresh = token(&next, json!({})).await;
    assert_eq!(
        whoami(&server, &fresh).await.0,
        StatusCode::UNAUTHORIZED,
        "the old server knows no new key"
    );
}
