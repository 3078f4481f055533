//! Names as people and upstream's tests ask for them: by `dig`, which looks at each part of an
//! answer.

use crate::node::{MANY, on_a_node, run};
use std::path::Path;

/// What `dig` writes; it says nothing about answers that do not fit their questions. Words of a
/// place, such as `@127.0.0.1`, come first.
fn dig(files: &Path, words: &str) -> String {
    let words: Vec<&str> = words.split(' ').collect();
    // One question each, which may take its time.
    let words = [&["+tries=1", "+time=60"][..], &words[..]].concat();
    let output = run(Path::new("dig"), files, &words);
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "dig of the package bind9-dnsutils (`cargo xtask test` installs it), {words:?}: {text}"
    );
    for bad in [
        "Warning",
        "mismatch",
        "MALFORMED",
        "no servers could be reached",
    ] {
        assert!(!text.contains(bad), "{words:?}: {text}");
    }
    text
}

/// The records that `dig` shows of a part of the answer, each without its owner.
fn records(files: &Path, words: &str) -> Vec<String> {
    let text = dig(files, &format!("+noall +nottlid {words}"));
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with(';'));
    let words = |line: &str| {
        line.split_whitespace()
            .skip(1)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let mut records: Vec<String> = lines.map(words).collect();
    records.sort();
    records
}

/// The number behind these words.
fn number(text: &str, words: &str) -> usize {
    let (_, rest) = text.split_once(words).unwrap();
    let digits = rest.trim_start().split(|one: char| !one.is_ascii_digit());
    digits.into_iter().next().unwrap().parse().unwrap()
}

#[test]
fn dig_finds_services_and_pods_by_datagrams_and_connections_of_both_families() {
    on_a_node(|files| {
        for way in ["+notcp", "+tcp", "+notcp @::1", "+tcp @::1"] {
            let answer = |words: &str| records(files, &format!("{way} +answer {words}"));
            // As upstream's tests ask: by the pod's search paths.
            for name in [
                "web",
                "web.shop",
                "web.shop.svc",
                "WEB.Shop.svc.cluster.LOCAL",
            ] {
                assert_eq!(
                    answer(&format!("+search {name} A")),
                    ["IN A 10.96.0.7"],
                    "{name}"
                );
            }
            let web = "web.shop.svc.cluster.local";
            assert_eq!(answer(&format!("{web} AAAA")), ["IN AAAA fd00:96::7"]);
            let alias = "alias.shop.svc.cluster.local";
            assert_eq!(
                answer(&format!("{alias} A")),
                ["IN A 10.96.0.7", "IN CNAME web.shop.svc.cluster.local."]
            );
            // One target with an address of each family.
            let asked = format!("_http._tcp.{web} SRV");
            assert_eq!(answer(&asked), [format!("IN SRV 0 100 80 {web}.")]);
            let beside = records(files, &format!("{way} +additional {asked}"));
            assert_eq!(beside, ["IN A 10.96.0.7", "IN AAAA fd00:96::7"]);
            // Asked so, members of a group are found by the plain name, too.
            let asked = format!("{web} SRV");
            assert_eq!(answer(&asked), [format!("IN SRV 0 100 80 {web}.")]);
            let beside = records(files, &format!("{way} +additional {asked}"));
            assert_eq!(beside, ["IN A 10.96.0.7", "IN AAAA fd00:96::7"]);
            let pod = "pod-7.many.shop.svc.cluster.local";
            assert_eq!(
                answer(&format!("{pod} SRV")),
                [format!("IN SRV 0 100 8080 {pod}.")]
            );
            // A pod below a service that has an address.
            let pod = "pod-3.web.shop.svc.cluster.local";
            assert_eq!(answer(&format!("{pod} A")), ["IN A 10.1.1.3"]);
            assert_eq!(answer("-x 10.1.1.3"), [format!("IN PTR {pod}.")]);
            for address in ["10.96.0.7", "fd00:96::7"] {
                assert_eq!(answer(&format!("-x {address}")), [format!("IN PTR {web}.")]);
            }
            let pod = ["IN PTR pod-7.many.shop.svc.cluster.local."];
            assert_eq!(answer("-x 10.1.0.7"), pod);
            assert_eq!(
                answer("dns-version.cluster.local TXT"),
                ["IN TXT \"1.1.0\""]
            );
        }
    });
}

#[test]
fn dig_gets_as_much_as_its_datagrams_hold_and_the_rest_by_a_connection() {
    on_a_node(|files| {
        let many = "many.shop.svc.cluster.local A";
        let mut held = Vec::new();
        // Without EDNS a datagram has 512 bytes, and the largest is 1,232.
        for (said, most) in [
            ("+noedns", 512),
            ("+bufsize=100", 512),
            ("+bufsize=512", 512),
            ("+bufsize=700", 700),
            ("+bufsize=1232", 1232),
            ("+bufsize=4096", 1232),
        ] {
            let text = dig(files, &format!("+ignore +notcp {said} {many}"));
            assert!(text.contains(";; flags: qr aa tc rd ra;"), "{said}: {text}");
            let size = number(&text, "MSG SIZE  rcvd:");
            assert!(size <= most && size + 16 > most, "{said}: {size}");
            assert_eq!(
                text.contains("EDNS: version: 0"),
                said != "+noedns",
                "{text}"
            );
            held.push(number(&text, "ANSWER:"));
            let whole = dig(files, &format!("+notcp {said} {many}"));
            assert!(
                whole.contains("Truncated, retrying in TCP mode."),
                "{whole}"
            );
            assert_eq!(number(&whole, "ANSWER:"), usize::from(MANY), "{said}");
        }
        // What tells of EDNS takes the room of a record.
        let [plain, held @ ..] = held.as_slice() else {
            unreachable!("{held:?}")
        };
        assert!(
            held.is_sorted() && *plain > held[0] && held[0] >= 25,
            "{held:?}"
        );
        for kind in ["A", "SRV"] {
            let asked = format!("+tcp many.shop.svc.cluster.local {kind}");
            let whole = dig(files, &asked);
            assert_eq!(number(&whole, "ANSWER:"), usize::from(MANY), "{kind}");
        }
    });
}

#[test]
fn dig_hears_how_long_there_is_nothing_and_why_it_gets_no_answer() {
    on_a_node(|files| {
        let web = "web.shop.svc.cluster.local";
        // The second number is how long nothing is remembered (RFC 2308).
        let soa = "IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5";
        for (asked, status) in [
            ("nobody.shop.svc.cluster.local A", "NXDOMAIN"),
            ("web.nowhere.svc.cluster.local AAAA", "NXDOMAIN"),
            ("_https._tcp.web.shop.svc.cluster.local SRV", "NXDOMAIN"),
            // A headless service without endpoints.
            ("idle.shop.svc.cluster.local A", "NXDOMAIN"),
            ("_http._tcp.idle.shop.svc.cluster.local SRV", "NXDOMAIN"),
            (&*format!("{web} MX"), "NOERROR"),
            ("cluster.local A", "NOERROR"),
        ] {
            let text = dig(files, asked);
            assert!(
                text.contains(&format!("status: {status},")),
                "{asked}: {text}"
            );
            assert!(text.contains(";; flags: qr aa rd ra;"), "{asked}: {text}");
            assert_eq!(number(&text, "ANSWER:"), 0, "{asked}: {text}");
            assert_eq!(
                records(files, &format!("+authority {asked}")),
                [soa],
                "{asked}"
            );
            let kept = dig(files, &format!("+noall +authority +ttlid {asked}"));
            assert_eq!(kept.split_whitespace().nth(1), Some("5"), "{kept}");
        }
        assert_eq!(records(files, "+answer cluster.local SOA"), [soa]);
        for (asked, status) in [
            ("-c CH version.bind TXT", "REFUSED"),
            (&*format!("-c HS {web} A"), "REFUSED"),
            (&*format!("+opcode=status {web}"), "NOTIMP"),
            (&*format!("+opcode=notify {web}"), "NOTIMP"),
            (&*format!("+opcode=update {web}"), "NOTIMP"),
            (&*format!("+opcode=15 {web}"), "NOTIMP"),
            (&*format!("+edns=1 +noednsnegotiation {web}"), "BADVERS"),
        ] {
            let text = dig(files, asked);
            assert!(
                text.contains(&format!("status: {status},")),
                "{asked}: {text}"
            );
            assert!(!text.contains("ANSWER SECTION"), "{asked}: {text}");
        }
        // A client of a later version asks again as this one.
        let later = dig(files, &format!("+edns=1 {web} A"));
        assert!(
            later.contains("status: NOERROR,") && later.contains("EDNS: version: 0"),
            "{later}"
        );
        let zone = run(Path::new("dig"), files, &["cluster.local", "AXFR"]);
        let zone = String::from_utf8(zone.stdout).unwrap();
        assert!(zone.contains("; Transfer failed."), "{zone}");
    });
}
