//! What the controllers follow: a list and a watch for each kind, and one stream of what changes.

use crate::garbage::ResourceId;
use crate::observe::{Kind, LEASES, Observed};
use crate::{bootstrap_signer, bootstrap_tokens};
use futures_util::stream::{self, BoxStream, SelectAll, StreamExt};
use master_api::client::Object;
use master_api::{Change, Client, Follower, ListParams, Partial, Resource, Seen};

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
        let mut all = Self { client, changes: SelectAll::new() };
        let every = ListParams::default;
        let with = |fields: String| ListParams { fields: Some(fields), ..ListParams::default() };
        all.typed(Kind::Node, None, every(), Observed::node);
        all.typed(Kind::Lease, Some(LEASES), every(), Observed::lease);
        all.typed(Kind::Pod, None, every(), Observed::pod);
        all.typed(Kind::Namespace, None, every(), Observed::namespace);
        all.typed(Kind::ServiceAccount, None, every(), Observed::service_account);
        all.typed(Kind::Event, None, every(), Observed::event);
        all.typed(Kind::Request, None, every(), Observed::request);
        let name = format!("metadata.name={}", crate::root_ca::NAME);
        all.typed(Kind::RootCa, None, with(name), Observed::root_ca);
        let tokens = format!("type={}", bootstrap_tokens::TYPE);
        all.typed(Kind::BootstrapToken, Some(bootstrap_tokens::NAMESPACE), with(tokens), Observed::bootstrap_token);
        let tokens = format!("type={}", crate::account_tokens::TYPE);
        all.typed(Kind::AccountToken, None, with(tokens), Observed::account_token);
        all.typed(Kind::Quota, None, every(), Observed::quota);
        let name = format!("metadata.name={}", bootstrap_signer::NAME);
        all.typed(Kind::ClusterInfo, Some(bootstrap_signer::NAMESPACE), with(name), Observed::cluster_info);
        all.typed(Kind::ServiceRange, None, every(), Observed::service_range);
        all.typed(Kind::ClusterRole, None, every(), Observed::cluster_role);
        all
    }

    /// Further kinds, of which the metadata is enough.
    pub(crate) fn add(&mut self, numbers: &[ResourceId], resources: &[Resource]) {
        for number in numbers.iter().copied() {
            let Some(resource) = resources.get(usize::from(number)) else { continue };
            let follower = Follower::metadata(self.client.clone(), resource);
            let take = move |observed: &mut Observed, change: Change<Partial>| observed.object(number, change);
            self.changes.push(changes(Kind::Object, follower, take));
        }
    }

    /// The next change. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<(Kind, Taken)> {
        self.changes.next().await
    }

    fn typed<T: Object>(
        &mut self,
        kind: Kind,
        namespace: Option<&str>,
        params: ListParams,
        take: fn(&mut Observed, Change<T>),
    ) {
        self.changes.push(changes(kind, Follower::new(self.client.clone(), namespace, params), take));
    }
}

fn changes<T: Seen>(
    kind: Kind,
    follower: Follower<T>,
    take: impl Fn(&mut Observed, Change<T>) + Copy + Send + 'static,
) -> BoxStream<'static, (Kind, Taken)> {
    let next = move |mut follower: Follower<T>| async move {
        let change = follower.next().await;
        let taken: Taken = Box::new(move |observed: &mut Observed| take(observed, change));
        Some(((kind, taken), follower))
    };
    stream::unfold(follower, next).boxed()
}
