//! Errors of the network's setup.

/// The network can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The kernel's socket can't be opened.
    #[error("the kernel's network configuration socket can't be opened")]
    Open(#[source] std::io::Error),
    /// There is no card to reach anything by.
    #[error("no network card was found in {0} s")]
    NoCard(u64),
    /// No address came.
    #[error("no address came by DHCP in {0} s")]
    NoLease(u64),
    /// The kernel's socket was closed.
    #[error("the kernel's network configuration socket was closed")]
    Closed,
    /// The kernel refused a request; the text says which.
    #[error("the kernel refused to {0}")]
    Refused(String, #[source] rtnetlink::Error),
}
