//! Follows certificate requests: keeps the queue of those that wait for a person, and records
//! decisions in the log of verdicts. They are signed by a controller (`master/control-nodes`).

use crate::queue_writer;
use crate::request_queue::RequestQueue;
use config_errors::chain;
use config_kube::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use jiff::Timestamp;
use master_client::{Change, Client, Follower, ListParams};
use master_journal::Journal;
use std::time::Duration;

/// How often requests are checked for their expiry.
const SWEEP: Duration = Duration::from_secs(5);

/// Follows the requests. Drop it to stop.
pub(crate) async fn keep_requests(client: &Client, queue: &RequestQueue, journal: &Journal) {
    // Joined and not arms of one select: a follower that is not polled in the middle of its list
    // may hold a lock that the other future's request needs.
    tokio::join!(follow(client, queue, journal), sweep(client, queue));
}

async fn follow(client: &Client, queue: &RequestQueue, journal: &Journal) {
    let params = ListParams::default();
    let mut follower = Follower::<CertificateSigningRequest>::new(client.clone(), None, params);
    loop {
        let change = follower.next().await;
        let decision = queue.take(&change);
        if let (Some(decision), Change::Set(object)) = (decision, &change) {
            let decision = decision.for_journal();
            journal.request_decided(&decision, object).await;
        }
    }
}

async fn sweep(client: &Client, queue: &RequestQueue) {
    let mut tick = tokio::time::interval(SWEEP);
    loop {
        tick.tick().await;
        drop_expired(client, queue).await;
    }
}

async fn drop_expired(client: &Client, queue: &RequestQueue) {
    for name in queue.expired(Timestamp::now()) {
        match queue_writer::drop_request(client, queue, &name).await {
            Ok(()) => tracing::info!(
                request = name,
                "no decision in time; the request is dropped"
            ),
            Err(error) => {
                tracing::warn!(
                    error = chain(&error),
                    request = name,
                    "cannot delete an expired request"
                );
            }
        }
    }
}
