//! The followers of controllers lose nothing, whatever the driver does with their futures.

use config_kube::k8s_openapi::api::core::v1::ConfigMap;
use config_kube::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use master_api::{ApiServer, Options};
use master_client::{Change, Client, DeleteParams, Follower, ListParams, UserInfo};
use master_store::EmbeddedStore;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

async fn admin() -> (Client, TempDir) {
    let folder = TempDir::new().expect("a folder for the store");
    let store = EmbeddedStore::open(folder.path()).expect("an empty store opens");
    let api = ApiServer::new(Arc::new(store), Options::default());
    api.prepare().await.expect("the system namespaces are made");
    (api.client(UserInfo::admin("admin")), folder)
}

fn map(name: &str) -> ConfigMap {
    let metadata = ObjectMeta {
        namespace: Some("default".to_owned()),
        name: Some(name.to_owned()),
        ..ObjectMeta::default()
    };
    ConfigMap {
        metadata,
        ..ConfigMap::default()
    }
}

/// What a follower's owner knows after a change.
fn learn(known: &mut BTreeSet<String>, change: Change<ConfigMap>) {
    let name = |map: &ConfigMap| map.metadata.name.clone().unwrap_or_default();
    match change {
        Change::Listed(maps) => *known = maps.iter().map(name).collect(),
        Change::Set(map) => {
            known.insert(name(&map));
        }
        Change::Deleted(gone) => {
            known.remove(&gone.key.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_looks_away_loses_nothing() {
    let (client, _folder) = admin().await;
    client.create(&map("before")).await.expect("it is made");
    let mut follower =
        Follower::<ConfigMap>::new(client.clone(), Some("default"), ListParams::default());
    let writes = async {
        for index in 0..100 {
            let name = format!("m{index}");
            client.create(&map(&name)).await.expect("it is made");
            if index % 3 == 0 {
                client
                    .delete::<ConfigMap>(Some("default"), &name, &DeleteParams::default())
                    .await
                    .expect("it goes");
            }
        }
    };
    let stay = (0..100)
        .filter(|index| index % 3 != 0)
        .map(|index| format!("m{index}"));
    let wanted: BTreeSet<String> = stay.chain(["before".to_owned()]).collect();
    let reads = async {
        let mut known = BTreeSet::new();
        while known != wanted {
            // Each try is dropped after a moment, at any point.
            if let Ok(change) =
                tokio::time::timeout(Duration::from_micros(50), follower.next()).await
            {
                learn(&mut known, change);
            }
        }
    };
    let both = async { tokio::join!(writes, reads) };
    tokio::time::timeout(Duration::from_secs(180), both)
        .await
        .expect("everything is learned");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_can_be_made_to_list_again() {
    let (client, _folder) = admin().await;
    client.create(&map("a")).await.expect("it is made");
    let mut follower =
        Follower::<ConfigMap>::new(client.clone(), Some("default"), ListParams::default());
    let Change::Listed(first) = follower.next().await else {
        panic!("the first change is a list")
    };
    assert_eq!(first.len(), 1);
    client.create(&map("b")).await.expect("it is made");
    assert!(
        matches!(follower.next().await, Change::Set(map) if map.metadata.name.as_deref() == Some("b"))
    );
    follower.relist();
    let Change::Listed(again) = follower.next().await else {
        panic!("it lists anew")
    };
    assert_eq!(again.len(), 2);
}
