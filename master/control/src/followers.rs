//! What the controllers follow: a list and a watch for each kind, and one stream of what changes.

use crate::garbage::ResourceId;
use crate::observe::{Kind, LEASES, Observed, apply};
use crate::{bootstrap_signer, bootstrap_tokens, read};
use futures_util::stream::{self, BoxStream, SelectAll, StreamExt};
use master_client::{Change, Client, Follower, ListParams, Object, Partial, Resource, Seen};

/// A change that is to be taken into the picture.
pub(crate) type Taken = Box<dyn FnOnce(&mut Observed) + Send>;

/// Everything that is followed.
pub(crate) struct Followers {
    client: Client,
    changes: SelectAll<BoxStream<'static, (Kind, Taken)>>,
}

impl Followers {
    /// The kinds that are known by name.
    pub(crate) fn new(client: Client) -> Self {
        let mut all = Self {
            client,
            changes: SelectAll::new(),
        };
        let every = ListParams::default;
        let with = |fields: String| ListParams {
            fields: Some(fields),
            ..ListParams::default()
        };
        all.typed(Kind::Node, None, every(), read::node, |observed, change| {
            apply(change, &mut observed.nodes);
        });
        all.typed(
            Kind::Lease,
            Some(LEASES),
            every(),
            read::lease,
            |observed, change| {
                apply(change, &mut observed.leases);
            },
        );
        let common = read::Common::default();
        all.typed(
            Kind::Pod,
            None,
            every(),
            move |pod| read::pod(pod, &common),
            Observed::pod,
        );
        all.typed(
            Kind::Namespace,
            None,
            every(),
            read::namespace,
            |observed, change| {
                apply(change, &mut observed.namespaces);
            },
        );
        all.typed(
            Kind::ServiceAccount,
            None,
            every(),
            read::service_account,
            Observed::service_account,
        );
        all.typed(
            Kind::Event,
            None,
            every(),
            read::event,
            |observed, change| apply(change, &mut observed.events),
        );
        all.typed(
            Kind::Request,
            None,
            every(),
            read::request,
            |observed, change| {
                apply(change, &mut observed.requests);
            },
        );
        let name = format!("metadata.name={}", crate::root_ca::NAME);
        all.typed(
            Kind::RootCa,
            None,
            with(name),
            read::root_ca,
            |observed, change| {
                apply(change, &mut observed.root_cas);
            },
        );
        let tokens = format!("type={}", bootstrap_tokens::TYPE);
        let namespace = Some(bootstrap_tokens::NAMESPACE);
        all.typed(
            Kind::BootstrapToken,
            namespace,
            with(tokens),
            read::bootstrap_token,
            |observed, change| {
                apply(change, &mut observed.bootstrap_tokens);
            },
        );
        let tokens = format!("type={}", crate::account_tokens::TYPE);
        all.typed(
            Kind::AccountToken,
            None,
            with(tokens),
            read::account_token,
            |observed, change| {
                apply(change, &mut observed.account_tokens);
            },
        );
        all.typed(
            Kind::Quota,
            None,
            every(),
            read::quota,
            |observed, change| apply(change, &mut observed.quotas),
        );
        let name = format!("metadata.name={}", bootstrap_signer::NAME);
        let namespace = Some(bootstrap_signer::NAMESPACE);
        all.typed(
            Kind::ClusterInfo,
            namespace,
            with(name),
            read::cluster_info,
            Observed::cluster_info,
        );
        all.typed(
            Kind::ServiceRange,
            None,
            every(),
            read::service_range,
            |observed, change| {
                apply(change, &mut observed.service_ranges);
            },
        );
        all.typed(
            Kind::ClusterRole,
            None,
            every(),
            read::cluster_role,
            |observed, change| {
                apply(change, &mut observed.cluster_roles);
            },
        );
        all
    }

    /// Further kinds, of which the metadata is enough.
    pub(crate) fn add(&mut self, numbers: &[ResourceId], resources: &[Resource]) {
        for number in numbers.iter().copied() {
            let Some(resource) = resources.get(usize::from(number)) else {
                continue;
            };
            let follower = Follower::metadata(self.client.clone(), resource);
            let take = move |observed: &mut Observed, change: Change<Partial>| {
                observed.object(number, change);
            };
            self.changes.push(changes(Kind::Object, follower, take));
        }
    }

    /// The next change. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<(Kind, Taken)> {
        self.changes.next().await
    }

    fn typed<T: Object, V: Send + 'static>(
        &mut self,
        kind: Kind,
        namespace: Option<&str>,
        params: ListParams,
        read: impl Fn(T) -> V + Send + Sync + 'static,
        take: fn(&mut Observed, Change<V>),
    ) {
        self.changes.push(changes(
            kind,
            Follower::reading(self.client.clone(), namespace, params, read),
            take,
        ));
    }
}

fn changes<T: Seen, V: Send + 'static>(
    kind: Kind,
    follower: Follower<T, V>,
    take: impl Fn(&mut Observed, Change<V>) + Copy + Send + 'static,
) -> BoxStream<'static, (Kind, Taken)> {
    let next = move |mut follower: Follower<T, V>| async move {
        let change = follower.next().await;
        let taken: Taken = Box::new(move |observed: &mut Observed| take(observed, change));
        Some(((kind, taken), follower))
    };
    stream::unfold(follower, next).boxed()
}
