//! The parts of the server that verbs use to write objects.

use super::call::Call;
use config_kube::identity::GROUP;
use master_admission::{Admitted, Chain, Operation, Request};
use master_auth::Authorizer;
use master_listener::Extensions;
use master_objects::Identities;
use master_schema::error::ApiError;
use master_schema::registry::Subresource;
use master_schema::validate::Fields;
use master_store::{Op, Reader, Store};
use master_wire::path::Verb;

/// The parts of the server that a write may use.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObjectWriter<'a> {
    pub(super) reader: &'a dyn Reader,
    pub(super) store: &'a dyn Store,
    /// The admission plugins.
    pub(super) admission: &'a Chain,
    /// Decides whether the caller may create, where an update or an apply finds no object.
    pub(super) authorizer: &'a Authorizer,
    pub(super) identities: &'a Identities,
    /// Gives the warnings for those who write this project's kinds.
    pub(super) extensions: Option<&'a dyn Extensions>,
}

impl ObjectWriter<'_> {
    /// The write of a request, as admission plugins see it.
    pub(super) fn request<'a>(
        &'a self,
        call: &'a Call,
        operation: Operation,
        subresource: Option<Subresource>,
        old: Option<&'a Fields>,
    ) -> Request<'a> {
        Request {
            kind: &call.kind,
            user: &call.user,
            namespace: &call.target.namespace,
            name: &call.target.name,
            patched: call.target.verb == Verb::Patch,
            operation,
            subresource,
            old,
            reader: self.reader,
        }
    }

    /// Refuses to change a stored object that the caller may not learn anything about.
    pub(super) fn reach(&self, call: &Call, stored: &Fields) -> Result<(), ApiError> {
        let request = self.request(call, Operation::Update, None, Some(stored));
        self.admission.reach(&request, stored)
    }

    /// Runs the plugins on a deletion.
    pub(super) async fn admit_delete(
        &self,
        call: &Call,
        stored: &Fields,
    ) -> Result<Admitted, ApiError> {
        let request = self.request(call, Operation::Delete, None, Some(stored));
        let mut admitted = Admitted::default();
        let check = self.admission.check(&request, stored, &mut admitted);
        check.await?;
        Ok(admitted)
    }

    /// The operations that free what an object had, for the transaction that removes it.
    pub(super) async fn release(&self, call: &Call, stored: &Fields) -> Result<Vec<Op>, ApiError> {
        let request = self.request(call, Operation::Delete, None, Some(stored));
        self.admission.release(&request, stored).await
    }

    /// The service's warnings for the writer of an object of this project's kinds.
    pub(super) fn own_warnings(&self, call: &Call, object: &Fields) -> Vec<String> {
        if call.kind.group != GROUP {
            return Vec::new();
        }
        self.extensions
            .map(|extensions| extensions.warnings(&call.kind.kind, object))
            .unwrap_or_default()
    }
}
