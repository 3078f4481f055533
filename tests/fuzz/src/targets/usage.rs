//! A node's report of its usage and its pods'.

use crate::run::{Shape, Target};
use master_usage::Answer;

pub(super) fn targets() -> Vec<Target> {
    let text = b"# TYPE node_cpu_usage_seconds_total counter\n\
        node_cpu_usage_seconds_total 1.5e3 1700000000000\n\
        node_memory_working_set_bytes 4096 1700000000000\n\
        container_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=\"p\"} 2.5 1700000000000\n\
        container_memory_working_set_bytes{container=\"c\",namespace=\"n\",pod=\"p\"} 1e6 1700000000000\n\
        container_start_time_seconds{container=\"c\",namespace=\"n\",pod=\"p\"} 1.6e9\n\
        unknown{x=\"a\\\"}b\",} NaN\n";
    vec![Target {
        name: "master-usage/figures",
        shape: Shape::Bytes,
        seeds: vec![text.to_vec()],
        decode: Box::new(|bytes| {
            let whole = Answer::parse(bytes, 1);
            // Bytes after the last line don't change it, unless they complete its newline.
            if !bytes.ends_with(b"\r") {
                let more = [bytes, b"\n# the end\nunknown 1\n"].concat();
                let more = Answer::parse(&more, 1);
                assert_eq!(whole, more, "a comment changes the figures");
            }
        }),
    }]
}
