//! What the links of a network have carried, by the kernel's texts; pure.

/// What a link carried in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
    pub(crate) errors: u64,
    pub(crate) dropped: u64,
}

/// A link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) name: String,
    pub(crate) received: Carried,
    pub(crate) sent: Carried,
}

/// The name of a pod's link within the pod.
const OF_POD: &str = "eth0";
/// The link on which a machine speaks to itself.
const OWN: &str = "lo";
/// `RTF_UP` and `RTF_REJECT` of a route (linux/route.h, linux/ipv6_route.h).
const UP: u32 = 1;
const REJECT: u32 = 0x200;

/// The links of a network, by `/proc/net/dev` (proc_pid_net(5)).
pub(crate) fn links(text: &str) -> Vec<Link> {
    text.lines().filter_map(link).collect()
}

fn link(line: &str) -> Option<Link> {
    let (name, numbers) = line.split_once(':')?;
    let numbers: Vec<u64> = numbers
        .split_whitespace()
        .map_while(|number| number.parse().ok())
        .collect();
    let carried = |from: usize| {
        let part = numbers.get(from..from + 4)?;
        let [bytes, packets, errors, dropped] = *<&[u64; 4]>::try_from(part).ok()?;
        Some(Carried {
            bytes,
            packets,
            errors,
            dropped,
        })
    };
    Some(Link {
        name: name.trim().to_owned(),
        received: carried(0)?,
        sent: carried(8)?,
    })
}

/// A pod's link as the pod counts, by the node's end of it: what that end sends, the pod receives.
pub(crate) fn of_pod(all: &[Link], name: &str) -> Option<Link> {
    let end = all.iter().find(|link| link.name == name)?;
    Some(Link {
        name: OF_POD.to_owned(),
        received: end.sent,
        sent: end.received,
    })
}

/// The machine's links, without those to its pods, whose names begin with `of_pods`.
pub(crate) fn of_node(all: Vec<Link>, of_pods: &str) -> Vec<Link> {
    let is_own = |name: &str| name != OWN && (of_pods.is_empty() || !name.starts_with(of_pods));
    all.into_iter().filter(|link| is_own(&link.name)).collect()
}

/// The link by which packets leave where no other route is known, by `/proc/net/route`, or else by
/// `/proc/net/ipv6_route`.
pub(crate) fn default_link(four: &str, six: &str) -> Option<String> {
    let flags = |text: &str| u32::from_str_radix(text, 16).unwrap_or_default();
    let four = four.lines().find_map(|line| {
        let parts: Vec<&str> = line.split_whitespace().collect();
        let [link, "00000000", _, flag, _, _, _, "00000000", ..] = parts.as_slice() else {
            return None;
        };
        (flags(flag) & UP != 0).then(|| (*link).to_owned())
    });
    four.or_else(|| {
        six.lines().find_map(|line| {
            let parts: Vec<&str> = line.split_whitespace().collect();
            let [destination, "00", .., flag, link] = parts.as_slice() else {
                return None;
            };
            let leads = flags(flag) & (UP | REJECT) == UP;
            let is_any = destination.bytes().all(|digit| digit == b'0');
            (leads && is_any).then(|| (*link).to_owned())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEV: &str = "Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:    9       9    0    0    0     0          0         0        9       9    0    0    0     0       0          0
  eth0: 1000      10    1    2    0     0          0         0     2000      20    3    4    0     0       0          0
pod-0a:  300       3    0    0    0     0          0         0      400       4    0    5    0     0       0          0
";

    #[test]
    fn a_pod_counts_the_other_way_round_than_the_nodes_end_of_its_link() {
        let all = links(DEV);
        assert_eq!(all.len(), 3);
        let pod = of_pod(&all, "pod-0a").unwrap();
        assert_eq!(pod.name, "eth0");
        assert_eq!((pod.received.bytes, pod.sent.bytes), (400, 300));
        assert_eq!((pod.received.dropped, pod.sent.dropped), (5, 0));
        assert_eq!(of_pod(&all, "pod-0b"), None);
        let own = of_node(all, "pod-");
        let [eth0] = own.as_slice() else {
            unreachable!("one link is the machine's own");
        };
        let received = Carried {
            bytes: 1000,
            packets: 10,
            errors: 1,
            dropped: 2,
        };
        assert_eq!((eth0.name.as_str(), eth0.received), ("eth0", received));
        assert_eq!(eth0.sent.bytes, 2000);
    }

    #[test]
    fn the_default_link_is_that_of_the_route_to_all_addresses() {
        let four = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
            ens3\t0002000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
            ens4\t00000000\t0202000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
        let any = "0".repeat(32);
        let six = format!(
            "{any} 00 {any} 00 {any} ffffffff 00000001 00000000 00200200       lo\n\
             {any} 00 {any} 00 fe80{} 00000400 00000001 00000000 00000003     ens5\n",
            "0".repeat(28)
        );
        assert_eq!(default_link(four, &six).as_deref(), Some("ens4"));
        assert_eq!(
            default_link("Iface\tDestination\n", &six).as_deref(),
            Some("ens5")
        );
        assert_eq!(default_link("", ""), None);
    }

    #[test]
    fn other_texts_have_no_links() {
        for text in [
            "",
            "eth0",
            "eth0: 1 2 3",
            "eth0: -1 x\n\0",
            "a: 1 2 3 4 5 6 7 8 9",
        ] {
            assert!(links(text).is_empty(), "{text:?}");
        }
    }
}
