//! Rotation of the cluster's root: the node reports whether it is ready for the new one, and the
//! agent on the master's own machine follows the pins that the master writes for it.

use crate::console::say;
use agent_discover::read_pins;
use agent_enroll::{CertificateSlot, Pins, RootReadiness, root_readiness};
use agent_kubelet::{Notice, Notices};
use config_kube::roots::{ROOT_UNKNOWN, ready_for};
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Time between two checks.
const LOOK: Duration = Duration::from_secs(2);

/// Keeps the Node condition about root rotation up to date. Runs until dropped.
pub(crate) async fn keep_condition(
    pins: Pins,
    certificate: Arc<CertificateSlot>,
    notices: Notices,
) -> Infallible {
    let mut logged = None;
    loop {
        let now = root_readiness(&pins, &certificate);
        if let Some(readiness) = &now
            && now != logged
        {
            let notice = notice(readiness);
            // An old certificate will be renewed anyway, and a ready node need not print anything.
            if matches!(readiness, RootReadiness::PinMissing(_)) {
                say(&notice.message);
            }
            notices.set(ROOT_UNKNOWN, notice);
            logged = now;
        }
        sleep(LOOK).await;
    }
}

fn notice(readiness: &RootReadiness) -> Notice {
    let (on, reason, message) = match readiness {
        RootReadiness::Ready(pins) => (false, "RootsAreKnown", ready_for(pins)),
        RootReadiness::PinMissing(pin) => (
            true,
            "PinMissing",
            format!(
                "the cluster's root is being rotated, and the new one is not pinned here: put \"{pin}\" into this machine's \
                 ca_pins and reboot it, or it is locked out when the old root ends"
            ),
        ),
        RootReadiness::CertificateOld(pin) => (
            true,
            "CertificateOld",
            format!(
                "this node's certificate ends with another root than {pin}; it is renewed by itself, and an issued one by \
                 `pratique issue`"
            ),
        ),
    };
    Notice {
        on,
        reason,
        message,
    }
}

/// Follows the pins in a file, for as long as it is polled.
pub(crate) async fn follow(path: PathBuf, pins: Pins) -> Infallible {
    loop {
        if let Some(fresh) = read_pins(&path)
            && fresh[..] != pins.get()[..]
        {
            pins.replace(fresh);
        }
        sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notice_says_what_to_do() {
        let pin = "sha256:bb".to_owned();
        assert!(
            notice(&RootReadiness::PinMissing(pin.clone()))
                .message
                .contains("ca_pins")
        );
        assert!(!notice(&RootReadiness::Ready(vec![pin])).on);
    }
}
