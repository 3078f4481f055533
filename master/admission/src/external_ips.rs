//! `DenyServiceExternalIPs`: a Service gets no new external addresses (KEP-2438).
//!
//! Every node sends traffic for such an address and port to the Service, its own requests included.
//! Anyone who may write Services could cut all nodes off from the master, or intercept any address
//! that pods call (CVE-2020-8554). So, unlike upstream's, it is enabled unless an admin disables
//! it.

use crate::plugin::{Admitted, Operation, Plugin, Request, name_of};
use master_client::BoxFuture;
use master_schema::error::ApiError;
use master_schema::validate::{Fields, items, object};
use serde_json::Value;
use std::collections::HashSet;

/// The plugin.
#[derive(Debug)]
pub(crate) struct DenyServiceExternalIps;

impl Plugin for DenyServiceExternalIps {
    fn concerns(&self, request: &Request<'_>) -> bool {
        request.operation != Operation::Delete && request.writes("", "services")
    }

    fn check<'a>(
        &'a self,
        request: &'a Request<'a>,
        service: &'a Fields,
        _admitted: &'a mut Admitted,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        let before = request.old.map(addresses).unwrap_or_default().iter();
        let before: HashSet<&Value> = before.collect();
        let kept = |address: &Value| before.contains(address);
        let answer = if addresses(service).iter().all(kept) {
            Ok(())
        } else {
            // Upstream's words.
            let why = "Use of external IPs is denied by admission control.";
            Err(request.forbidden(name_of(service), why))
        };
        Box::pin(std::future::ready(answer))
    }
}

fn addresses(service: &Fields) -> &[Value] {
    object(service, "spec").map_or(&[], |spec| items(spec, "externalIPs"))
}
