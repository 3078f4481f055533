//! Enrolment, the client and renewal, with a real software TPM against the real verifier.

use agent_enroll::{
    Endpoint, Endpoints, Enroller, Error, Identity, Logs, MasterClient, Milestone,
    MilestoneCallback, Prover, Renewer, Settings,
};
use agent_tpm::Tpm;
use bytes::Bytes;
use config_protocol::wire::{Claims, RENEWALS_PATH, SESSIONS_PATH};
use futures_util::StreamExt as _;
use http::Method;
use std::sync::Arc;
use std::time::Duration;
use tests_harness::swtpm::Swtpm;
use tests_support::master::{Behaviour, Booted, Master};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Longest wait for something that takes a second or two.
const LIMIT: Duration = Duration::from_secs(180);

struct Node {
    machine: (Swtpm, Booted),
    enroller: Enroller,
    milestones: UnboundedReceiver<String>,
}

/// A machine in the master's inventory that tries `endpoints` and trusts `pin`.
async fn node(master: &Master, endpoints: &[(&str, u16)], pin: [u8; 32]) -> Node {
    claiming("worker-1", master, endpoints, pin).await
}

/// The same, under the name that it claims or, without one, the one derived from its key.
async fn claiming(name: &str, master: &Master, endpoints: &[(&str, u16)], pin: [u8; 32]) -> Node {
    let swtpm = Swtpm::new();
    let booted = master.register("worker-1", "worker", &swtpm.tcti(), &swtpm.issuer_pem());
    let logs = Logs {
        firmware: booted.firmware(),
        config_event: booted.config_event(),
    };
    let prover = Prover::new(Tpm::open(&swtpm.tcti()).expect("open"), logs);
    let endpoints = endpoints
        .iter()
        .map(|(host, port)| Endpoint::new(host, *port).expect("an endpoint"))
        .collect();
    let settings = Settings {
        endpoints: Endpoints::new(endpoints).expect("not empty"),
        pins: vec![pin].into(),
        claims: Claims {
            name: name.to_owned(),
            ..Claims::default()
        },
    };
    let (sender, milestones) = unbounded_channel();
    let report: MilestoneCallback =
        Arc::new(move |milestone: &Milestone<'_>| drop(sender.send(line(milestone))));
    Node {
        machine: (swtpm, booted),
        enroller: Enroller::new(prover, settings, report)
            .await
            .expect("an enroller"),
        milestones,
    }
}

fn line(milestone: &Milestone<'_>) -> String {
    match milestone {
        Milestone::Enrolling { .. } => "enrolling".to_owned(),
        Milestone::Refused {
            step,
            code,
            message,
            ..
        } => format!("refused {code} {message} ({step})"),
        Milestone::Queued { message, .. } => format!("queued {message}"),
        Milestone::Failed { step, error, .. } => format!("failed {} ({step})", kind(error)),
        Milestone::Enrolled { node, .. } => format!("enrolled {node}"),
        Milestone::Renewed { .. } => "renewed".to_owned(),
        Milestone::Expired => "expired".to_owned(),
    }
}

fn kind(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

impl Node {
    async fn enroll(
        self,
    ) -> (
        Identity,
        Renewer,
        UnboundedReceiver<String>,
        (Swtpm, Booted),
    ) {
        let (identity, keeper) = tokio::time::timeout(LIMIT, self.enroller.enroll())
            .await
            .expect("in time")
            .expect("enrolled");
        (identity, keeper, self.milestones, self.machine)
    }
}

/// The first milestone that begins with `prefix`.
async fn milestone(milestones: &mut UnboundedReceiver<String>, prefix: &str) -> String {
    let wait = async {
        loop {
            let line = milestones.recv().await.expect("more milestones");
            if line.starts_with(prefix) {
                return line;
            }
        }
    };
    tokio::time::timeout(LIMIT, wait)
        .await
        .expect("the milestone in time")
}

async fn whoami(client: &MasterClient) -> String {
    let answer = client
        .request(Method::GET, "/whoami", "", Bytes::new())
        .await
        .expect("an answer");
    assert_eq!(answer.status, 200);
    String::from_utf8(answer.body.to_vec()).expect("text")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_joins_speaks_with_its_tpm_key_and_renews_without_a_lapse() {
    let master = Master::start(Behaviour::Good).await;
    let (identity, keeper, mut lines, _machine) =
        node(&master, &[("127.0.0.1", master.port)], master.pin)
            .await
            .enroll()
            .await;
    assert_eq!(identity.node, "worker-1");
    let figures = identity.figures();
    let first = whoami(&identity.client).await;
    assert!(
        first.starts_with("system:node:worker-1 ") && first.ends_with(" h2"),
        "{first}"
    );
    let serving = identity.serving.get().expect("a serving certificate");
    let keeper = tokio::spawn(keeper.keep());
    milestone(&mut lines, "renewed").await;
    let second = whoami(&identity.client).await;
    assert_ne!(first, second, "another serial number");
    assert_ne!(
        serving.cert,
        identity.serving.get().expect("a serving certificate").cert
    );
    milestone(&mut lines, "renewed").await;
    // On a busy machine the next renewal may have begun.
    assert_eq!(
        master.hellos()[..3],
        [SESSIONS_PATH, RENEWALS_PATH, RENEWALS_PATH]
    );
    keeper.abort();
    let metrics = figures.text();
    let asked = format!(r#"host="127.0.0.1:{}",method="GET"}}"#, master.port);
    let took = format!(r#"host="127.0.0.1:{}",verb="GET"}}"#, master.port);
    let figure = |name: &str| figure(&metrics, name);
    assert_eq!(
        figure(&format!(
            r#"rest_client_requests_total{{code="200",{asked}"#
        )),
        Some(2),
        "{metrics}"
    );
    assert_eq!(
        figure(&format!(
            "rest_client_request_duration_seconds_count{{{took}"
        )),
        Some(2),
        "{metrics}"
    );
    for of in ["client", "server"] {
        let left = figure(&format!("kubelet_certificate_manager_{of}_ttl_seconds"));
        assert!(left.is_some_and(|left| left > 0), "{metrics}");
    }
}

/// The value of a sample, by its name and labels.
fn figure(metrics: &str, name: &str) -> Option<i64> {
    let found = metrics.lines().find_map(|line| line.strip_prefix(name));
    found.and_then(|value| value.trim().parse().ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_renewal_is_followed_by_joining_anew() {
    let master = Master::start(Behaviour::RefusesRenewals).await;
    let (identity, keeper, mut lines, _machine) =
        node(&master, &[("127.0.0.1", master.port)], master.pin)
            .await
            .enroll()
            .await;
    let failures = || {
        let metrics = identity.figures().text();
        let client = "kubelet_certificate_manager_client_expiration_renew_errors";
        let both = [client, "kubelet_server_expiration_renew_errors"];
        both.map(|name| figure(&metrics, name))
    };
    assert_eq!(failures(), [Some(0), Some(0)]);
    let keeper = tokio::spawn(keeper.keep());
    assert_eq!(
        milestone(&mut lines, "refused").await,
        "refused REFUSED see the master (step 2, challenge)"
    );
    milestone(&mut lines, "renewed").await;
    let failed = failures();
    assert!(failed[0] >= Some(1) && failed[0] == failed[1], "{failed:?}");
    assert_eq!(
        master.hellos()[..3],
        [SESSIONS_PATH, RENEWALS_PATH, SESSIONS_PATH]
    );
    keeper.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queued_machine_reports_it_and_asks_again() {
    let master = Master::start(Behaviour::AsksAPerson).await;
    let (identity, _keeper, mut lines, _machine) =
        node(&master, &[("127.0.0.1", master.port)], master.pin)
            .await
            .enroll()
            .await;
    assert_eq!(
        milestone(&mut lines, "queued").await,
        "queued waits as request-1"
    );
    assert_eq!(identity.node, "worker-1");
    assert_eq!(
        master.hellos(),
        [SESSIONS_PATH, SESSIONS_PATH],
        "a whole new exchange"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_without_a_name_learns_its_own_and_asks_under_it() {
    let master = Master::start(Behaviour::Good).await;
    let (identity, _keeper, _lines, _machine) =
        claiming("", &master, &[("127.0.0.1", master.port)], master.pin)
            .await
            .enroll()
            .await;
    assert_eq!(identity.node, "worker-1");
    assert!(
        whoami(&identity.client)
            .await
            .starts_with("system:node:worker-1 ")
    );
    assert_eq!(master.hellos(), [SESSIONS_PATH, SESSIONS_PATH]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_comes_line_by_line_and_an_answer_has_a_limit() {
    let master = Master::start(Behaviour::Good).await;
    let (identity, _keeper, _lines, _machine) =
        node(&master, &[("127.0.0.1", master.port)], master.pin)
            .await
            .enroll()
            .await;
    let watch = identity
        .client
        .watch("/watch")
        .await
        .expect("an answer")
        .expect("a watch");
    let lines: Vec<Bytes> = watch.map(|line| line.expect("a line")).collect().await;
    assert_eq!(lines, [&b"{\"a\":1}"[..], b"{\"b\":2}", b"", b"{\"c\":3}"]);
    let missing = identity.client.watch("/nothing").await.expect("an answer");
    assert_eq!(missing.err().expect("no watch").status, 404);
    let huge = identity
        .client
        .request(Method::GET, "/huge", "", Bytes::new())
        .await;
    assert!(matches!(huge, Err(Error::TooLarge(_))));
    let metrics = identity.figures().text();
    let asked = |code: &str| {
        let labels = format!(
            r#"code="{code}",host="127.0.0.1:{}",method="GET""#,
            master.port
        );
        figure(&metrics, &format!("rest_client_requests_total{{{labels}}}"))
    };
    assert_eq!(
        (asked("200"), asked("404")),
        (Some(2), Some(1)),
        "{metrics}"
    );
    let took = format!(r#"host="127.0.0.1:{}",verb="GET""#, master.port);
    let name = format!("rest_client_request_duration_seconds_count{{{took}}}");
    assert_eq!(figure(&metrics, &name), Some(1), "watches have no duration");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_down_is_skipped() {
    let master = Master::start(Behaviour::Good).await;
    // Nothing listens on port 1.
    let endpoints = [("127.0.0.1", 1), ("127.0.0.1", master.port)];
    let (identity, _keeper, _lines, _machine) =
        node(&master, &endpoints, master.pin).await.enroll().await;
    whoami(&identity.client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_endorsement_key_is_shown_after_a_refused_hello() {
    let master = Master::start(Behaviour::RefusesRsa).await;
    let (identity, _keeper, mut lines, _machine) =
        node(&master, &[("127.0.0.1", master.port)], master.pin)
            .await
            .enroll()
            .await;
    milestone(&mut lines, "refused").await;
    whoami(&identity.client).await;
}

/// The milestone of a node's first failed attempt, and what the master received.
async fn first_failure(master: &Master, host: &str, pin: [u8; 32]) -> (String, usize) {
    let node = node(master, &[(host, master.port)], pin).await;
    let mut lines = node.milestones;
    let enrolment = tokio::spawn(node.enroller.enroll());
    let failure = milestone(&mut lines, "failed").await;
    enrolment.abort();
    (failure, master.hellos().len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_to_a_server_without_a_pinned_root() {
    let master = Master::start(Behaviour::Good).await;
    let mut pin = master.pin;
    pin[0] ^= 1;
    let (failure, hellos) = first_failure(&master, "127.0.0.1", pin).await;
    assert!(
        failure.contains("ca_pins")
            && failure.contains("sha256:")
            && failure.ends_with("(step 1, hello)"),
        "{failure}"
    );
    assert_eq!(hellos, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_to_a_server_with_another_name() {
    let master = Master::start(Behaviour::Good).await;
    let (failure, hellos) = first_failure(&master, "localhost", master.pin).await;
    assert!(
        failure.contains("not valid for name") || failure.contains("NotValidForName"),
        "{failure}"
    );
    assert_eq!(hellos, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_for_another_key_is_not_put_in_use() {
    let master = Master::start(Behaviour::CertifiesAnotherKey).await;
    let (failure, _) = first_failure(&master, "127.0.0.1", master.pin).await;
    assert!(
        failure.contains("the client certificate is for another key")
            && failure.ends_with("(step 5, certificates)"),
        "{failure}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reason_of_a_refused_proof_is_reported() {
    let master = Master::start(Behaviour::ExpectsAnotherConfiguration).await;
    let node = node(&master, &[("127.0.0.1", master.port)], master.pin).await;
    let mut lines = node.milestones;
    let enrolment = tokio::spawn(node.enroller.enroll());
    assert_eq!(
        milestone(&mut lines, "refused").await,
        "refused CONFIG_CHANGED see the master (step 4, verdict)"
    );
    enrolment.abort();
}
