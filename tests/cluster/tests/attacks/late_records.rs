//! Changes of which the log of verdicts has no record.

use crate::drift::log;
use crate::lab::{LIMIT, Lab};
use config_kube::{CertificatePolicy, CertificatePolicySpec, ImageRelease, Machine};
use config_tpm::Digest;
use config_verdicts::{Entry, LogFile, Record, verify};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tests_machines::SoftImage;

/// How the record of a change begins that is recorded only at a start.
const LATE: [&str; 2] = [
    "changed while no record could be written",
    "removed while no record could be written",
];

/// The entries of the log with their order.
async fn entries(lab: &Lab) -> Vec<Entry> {
    let text = String::from_utf8(log(lab).await).unwrap();
    let records = text.lines().filter_map(|line| {
        let (_, json) = line.split_once(' ')?;
        serde_json::from_str::<Record>(json).ok()
    });
    records.map(|record| record.verdict).collect()
}

/// Waits for entries; returns all.
async fn until(lab: &Lab, what: &str, is: impl Fn(&[Entry]) -> bool) -> Vec<Entry> {
    let start = Instant::now();
    loop {
        let entries = entries(lab).await;
        if is(&entries) {
            return entries;
        }
        assert!(start.elapsed() < LIMIT, "no {what}: {entries:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The newest segment of a data folder.
fn newest(data: &Path) -> PathBuf {
    let all = std::fs::read_dir(data.join("verdicts")).unwrap();
    let segments = all.map(|entry| entry.unwrap().path());
    segments
        .filter(|path| path.extension().is_some_and(|end| end == "log"))
        .max()
        .unwrap()
}

/// An admin retires a machine, edits the policy and withdraws an image, and the records of that are
/// not on the disk when the power goes: the next start records each change, once.
pub(crate) async fn a_change_whose_record_was_lost_is_reported_at_the_next_start() {
    let lab = Lab::start().await;
    let image = SoftImage::new("worker-withdrawn", "worker", 9);
    lab.release(&image, true).await;
    let release = image.manifest().id;
    let (machine, other) = (lab.machine().await, lab.machine().await);
    let has = |entries: &[Entry], name: &str| entries.iter().any(|entry| entry.name == name);
    until(&lab, "records of what was made", |entries| {
        [&*release, &*machine.node, &*other.node, "cluster"]
            .iter()
            .all(|name| has(entries, name))
    })
    .await;
    // An orderly end and a start: what has its record is not recorded again.
    lab.site.cut_and_restart().await;
    until(&lab, "second start", |entries| {
        let starts = |entry: &&Entry| entry.kind == config_verdicts::Kind::Started;
        entries.iter().filter(starts).count() == 2
    })
    .await;
    let mut whole = 0;
    lab.site
        .cut_and_change(async |data| {
            whole = std::fs::metadata(newest(data)).unwrap().len();
        })
        .await;
    let retired = json!({ "spec": { "retired": true } });
    lab.site.patch::<Machine>(&machine.node, &retired).await;
    lab.change_rule(|rule| rule["images"]["minSvn"] = json!(8))
        .await;
    lab.site.delete::<ImageRelease>(&release).await;
    let draft = CertificatePolicy::named("draft", CertificatePolicySpec { rules: Vec::new() });
    lab.site.create(&draft).await;
    lab.site
        .cut_and_change(async |data| {
            let segment = std::fs::OpenOptions::new()
                .write(true)
                .open(newest(data))
                .unwrap();
            segment.set_len(whole).unwrap();
        })
        .await;
    let late_of = |entries: &[Entry]| -> Vec<(String, String)> {
        let late = entries.iter().filter_map(|entry| {
            let how = LATE.iter().find(|late| entry.message.starts_with(**late))?;
            Some((entry.name.clone(), (*how).to_owned()))
        });
        late.collect()
    };
    let found = until(&lab, "record of each change", |entries| {
        late_of(entries).len() >= 3 && has(entries, "draft")
    })
    .await;
    let mut late = late_of(&found);
    late.sort();
    let mut expected = vec![
        ("cluster".to_owned(), LATE[0].to_owned()),
        (machine.node.clone(), LATE[0].to_owned()),
        (release.clone(), LATE[1].to_owned()),
    ];
    expected.sort();
    assert_eq!(late, expected);
    let about = |name: &str| found.iter().rfind(|entry| entry.name == name).unwrap();
    let retired = about(&machine.node);
    assert!(
        retired.message.contains("Retired: the machine is retired"),
        "{retired:?}"
    );
    assert!(retired.by.contains("admin"), "{retired:?}");
    // Once: a third start records nothing again, and the log is whole.
    lab.site.cut_and_restart().await;
    let (_, root) = x509_parser::parse_x509_certificate(&lab.site.root).unwrap();
    let pin = Digest::of(root.public_key().raw);
    let last = lab.machine().await;
    let entries = until(&lab, "record after the last start", |entries| {
        has(entries, &last.node)
    })
    .await;
    assert_eq!(late_of(&entries).len(), 3, "{entries:#?}");
    verify(&[LogFile::new("log", log(&lab).await)], &[pin], &[]).unwrap();
}
