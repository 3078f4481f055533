//! Queries for a node's own logs, and the logs' content.

use crate::run::{Shape, Target};
use agent_journal::oom::Victim;
use agent_journal::{LoggedService, Query, record};
use config_machine::journal::Stamp;

pub(super) fn targets() -> Vec<Target> {
    vec![
        Target {
            name: "agent-journal/query",
            shape: Shape::Bytes,
            seeds: [
                "query=kubelet&query=kernel&sinceTime=2026-11-24T03:00:00Z&tailLines=5&boot=-1&follow=true",
                "query=agent&pattern=(%3Fi)a%5Bbc%5D%2B%5Cd%7B3%7D%7C%5EINFO%24&untilTime=2026-11-24T04%3A00%3A00%2B01:00",
            ]
            .map(|query| query.as_bytes().to_vec())
            .to_vec(),
            decode: Box::new(|bytes| {
                let Ok(query) = Query::parse(&String::from_utf8_lossy(bytes)) else {
                    return;
                };
                assert!((1..=LoggedService::ALL.len()).contains(&query.services.len()));
                assert!(query.tail.is_none_or(|lines| lines <= 100_000));
                if let (Some(since), Some(until)) = (query.since, query.until) {
                    assert!(since <= until);
                }
                // An accepted query matches a line in bounded time.
                if let Some(pattern) = query.pattern {
                    assert!(pattern.as_str().len() <= 1024);
                    pattern.is_match(&"ab 1".repeat(1024));
                }
            }),
        },
        Target {
            name: "agent-journal/record",
            shape: Shape::Bytes,
            seeds: vec![
                b"6,339,5140900,-,caller=T1;NET: Registered\\x0aPF_INET6\n SUBSYSTEM=net\n DEVICE=n2\n".to_vec(),
                b"30,340,5140901,c;init: pratique: 5140 state mounted\n".to_vec(),
                b"6,2,6,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=java,pid=7,uid=0".to_vec(),
            ],
            decode: Box::new(|bytes| {
                if let Some(record) = record(bytes) {
                    assert!(record.text.len() <= bytes.len());
                    // A program chooses its name, which is in the kernel's line of its end.
                    let line = String::from_utf8_lossy(&record.text);
                    if let Some(victim) = Victim::read(&line) {
                        assert!(line.contains(&victim.process));
                    }
                }
            }),
        },
        Target {
            name: "config-machine/stamp",
            shape: Shape::Bytes,
            seeds: vec![b"00c0ffee 1795478400123 12345 a line of text".to_vec()],
            decode: Box::new(|bytes| {
                if let Some((stamp, text)) = Stamp::split(bytes) {
                    let again = [stamp.to_string().as_bytes(), b" ", text].concat();
                    assert_eq!(Stamp::split(&again), Some((stamp, text)));
                }
            }),
        },
    ]
}
