//! Names as programs ask for them.

use crate::node::{MANY, RESOLV_CONF, on_a_node, run};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Prints the addresses of a name, as musl's resolver finds them.
const BY_MUSL: &str = r#"
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
int main(int count, char **words) {
    struct addrinfo want = {.ai_family = strchr(words[1], '4') ? AF_INET : strchr(words[1], '6') ? AF_INET6 : AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *one;
    int fault = getaddrinfo(words[2], 0, &want, &one);
    if (fault) return fprintf(stderr, "%s\n", gai_strerror(fault)), 2;
    for (; one; one = one->ai_next) {
        char text[64];
        getnameinfo(one->ai_addr, one->ai_addrlen, text, sizeof text, 0, 0, NI_NUMERICHOST);
        puts(text);
    }
}
"#;

/// That program, which takes a database and a name as `getent` does.
fn by_musl(dir: &Path) -> PathBuf {
    let (source, program) = (dir.join("by-musl.c"), dir.join("by-musl"));
    std::fs::write(&source, BY_MUSL).unwrap();
    let made = Command::new("musl-gcc")
        .args(["-static", "-o"])
        .args([&program, &source])
        .status();
    let made = made.expect("musl-gcc, of the package musl-tools (`cargo xtask test` installs it)");
    assert!(made.success());
    program
}

/// What `getent`, or a program like it, finds, one address a line; nothing where it finds none.
fn found(program: &Path, files: &Path, database: &str, name: &str) -> BTreeSet<String> {
    let output = run(program, files, &[database, name]);
    let code = output.status.code().unwrap();
    // 2: not found.
    assert!(matches!(code, 0 | 2), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines();
    if database == "hosts" {
        return lines
            .map(|line| line.split_whitespace().nth(1).unwrap().to_owned())
            .collect();
    }
    let first = lines.map(|line| line.split_whitespace().next().unwrap().to_owned());
    first.collect()
}

#[test]
fn glibc_and_musl_find_services_and_pods_by_every_name_that_they_have() {
    let programs = tempfile::tempdir().unwrap();
    let (getent, by_musl) = (Path::new("getent"), by_musl(programs.path()));
    on_a_node(|files| {
        let with = |program: &Path, database: &str, name: &str| -> Vec<String> {
            let all = found(program, files, database, name);
            all.into_iter().collect()
        };
        let found = |database: &str, name: &str| with(getent, database, name);
        let names = [
            "web",
            "web.shop",
            "web.shop.svc",
            "web.shop.svc.cluster.local",
            "web.shop.svc.cluster.local.",
            "alias",
        ];
        for program in [getent, by_musl.as_path()] {
            for name in names {
                let found = |database: &str| with(program, database, name);
                assert_eq!(found("ahostsv4"), ["10.96.0.7"], "{name}");
                assert_eq!(found("ahostsv6"), ["fd00:96::7"], "{name}");
                assert_eq!(found("ahosts"), ["10.96.0.7", "fd00:96::7"], "{name}");
            }
            assert_eq!(with(program, "ahostsv4", "pod-7.many"), ["10.1.0.7"]);
            assert_eq!(with(program, "ahostsv4", "pod-3.web"), ["10.1.1.3"]);
            assert!(with(program, "ahostsv4", "nobody").is_empty());
        }
        // Before 1.2.4 musl takes what a datagram holds.
        let some = with(&by_musl, "ahostsv4", "many");
        assert!(some.len() >= 25, "{some:?}");
        // More than an answer by UDP holds: the resolver asks again by TCP.
        assert_eq!(found("ahostsv4", "many").len(), usize::from(MANY));
        // By the name of the cluster's own service, as programs have it in their configuration.
        assert_eq!(found("ahostsv4", "kube-dns.kube-system"), ["10.96.0.10"]);
        let back = |address| found("hosts", address);
        assert_eq!(back("10.96.0.7"), ["web.shop.svc.cluster.local"]);
        assert_eq!(back("fd00:96::7"), ["web.shop.svc.cluster.local"]);
        assert_eq!(back("10.1.0.7"), ["pod-7.many.shop.svc.cluster.local"]);
        assert_eq!(back("10.1.1.3"), ["pod-3.web.shop.svc.cluster.local"]);
        std::fs::write(
            files.join("resolv.conf"),
            RESOLV_CONF.replace("127.0.0.1", "10.96.0.10"),
        )
        .unwrap();
        assert_eq!(found("ahosts", "web"), ["10.96.0.7", "fd00:96::7"]);
        assert_eq!(found("ahostsv4", "many").len(), usize::from(MANY), "by TCP");
    });
}
