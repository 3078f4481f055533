//! A program of a pod that uses the API by kube-rs, with nothing but what its container has: the
//! API's address in the environment, and token, namespace and root in files. Its argument is the
//! name of the config map that it makes; `answer` where there is none.

use config_kube::k8s_openapi::api::authentication::v1::SelfSubjectReview;
use config_kube::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use futures_util::TryStreamExt as _;
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use std::error::Error;
use std::pin::pin;

/// Waits by a watch until the config map `question` has a word, and makes a config map with that
/// word, with the user that the API takes this program for, and with the code by which it refuses
/// what the user may not.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = kube::Client::try_default().await?;
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = SelfSubjectReview::default();
    let review = reviews.create(&PostParams::default(), &review).await?;
    let user = review.status.and_then(|status| status.user_info?.username);
    let secrets: Api<Secret> = Api::default_namespaced(client);
    let code = match secrets.list(&ListParams::default()).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => return Err(error.into()),
    };
    let question = watcher::Config::default().fields("metadata.name=question");
    let mut questions = pin!(watcher(maps.clone(), question).applied_objects());
    let word = loop {
        let question = questions.try_next().await?.ok_or("the watch ended")?;
        if let Some(word) = question.data.and_then(|mut data| data.remove("word")) {
            break word;
        }
    };
    let data = [
        ("word", word),
        ("user", user.unwrap_or_default()),
        ("secrets", code.to_string()),
    ];
    let name = std::env::args().nth(1);
    let name = name.unwrap_or_else(|| "answer".to_owned());
    let answer = ConfigMap {
        metadata: ObjectMeta {
            name: Some(name),
            ..ObjectMeta::default()
        },
        data: Some(data.map(|(key, value)| (key.to_owned(), value)).into()),
        ..ConfigMap::default()
    };
    maps.create(&PostParams::default(), &answer).await?;
    Ok(())
}
