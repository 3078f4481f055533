//! Tests sizes by themselves, and with the kernel of this host. Needs root.

use super::*;
use agent_sys::namespace::{Kind, in_new};
use agent_sys::netlink::links::LOOPBACK;

#[test]
fn a_burst_that_leaves_the_machine_fits_every_link() {
    for outside in (1280..=MOST_OUTSIDE).chain([65_520]) {
        let sizes = Sizes::of(outside);
        if sizes.inside == outside {
            assert!(outside > MOST_OUTSIDE);
            continue;
        }
        let packets = sizes.of_pod().packets;
        let bytes = packets * (outside - LEAST_HEADERS) + HEADERS;
        assert!(bytes <= USUAL_BURST, "{outside}: {bytes}");
        assert!(packets >= 7, "{outside}: {packets}");
        // As many larger packets are more than twice as many bytes, and each is within the limit of
        // IP.
        let bytes = packets * (sizes.inside - LEAST_HEADERS);
        assert!(bytes > 2 * USUAL_BURST, "{outside}: {bytes}");
        assert!(sizes.inside < 65_535, "{outside}");
    }
}

#[test]
fn a_kernel_that_refuses_larger_bursts_makes_usual_ones() {
    in_new(&[Kind::Network], || {
        let mut links = Links::open()?;
        let before = links.named("lo")?.unwrap();
        let beyond = Burst {
            bytes: u32::MAX,
            ..Sizes::of_node()
        };
        assert!(links.set_burst(LOOPBACK, beyond).is_err());
        Sizes::of(1500).widen("lo", beyond, &mut links)?;
        assert_eq!(links.named("lo")?.unwrap(), before);
        Ok(())
    })
    .unwrap();
}
