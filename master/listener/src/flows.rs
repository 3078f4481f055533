//! Flows: the FlowSchema that a request matches, and its priority level (upstream: API Priority and
//! Fairness). Answers name both, as upstream's do. Nothing is queued or limited by them: the limits
//! are those of [`RequestSlots`](crate::RequestSlots).

use config_kube::k8s_openapi::api::flowcontrol::v1::{
    FlowSchema, NonResourcePolicyRule, PolicyRulesWithSubjects, PriorityLevelConfiguration,
    ResourcePolicyRule, Subject,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use master_client::UserInfo;
use std::collections::HashMap;

const SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");
/// Prefix of the user name of a service account; its namespace, a colon and its name follow.
const ACCOUNT: &str = "system:serviceaccount:";

/// A request, as flow schemas match it.
#[derive(Debug, Clone, Copy)]
pub struct FlowRequest<'a> {
    /// The caller, or the user that it impersonates.
    pub user: &'a UserInfo,
    /// The verb, as upstream names it.
    pub verb: &'a str,
    /// The resource or path.
    pub target: FlowTarget<'a>,
}

/// The resource or the path of a request.
#[derive(Debug, Clone, Copy)]
pub enum FlowTarget<'a> {
    /// A resource.
    Resource {
        /// The API group; empty for the core group.
        group: &'a str,
        /// The plural.
        plural: &'a str,
        /// Empty for the object itself.
        subresource: &'a str,
        /// Empty for what is in no namespace.
        namespace: &'a str,
    },
    /// A path that is not a resource's.
    Path(&'a str),
}

/// The headers of an answer that name its request's FlowSchema and PriorityLevelConfiguration.
#[derive(Debug, Clone)]
pub struct Flow {
    schema: HeaderValue,
    level: HeaderValue,
}

impl Flow {
    /// Names the flow in the head of an answer.
    pub fn write_headers(self, headers: &mut HeaderMap) {
        headers.insert(SCHEMA, self.schema);
        headers.insert(LEVEL, self.level);
    }
}

/// All flow schemas, read once, in the order in which they are tried.
#[derive(Debug, Default)]
pub struct Flows(Vec<(Flow, Vec<Rule>)>);

impl Flows {
    /// Reads flow schemas. One whose priority level is missing matches nothing.
    pub fn of(schemas: Vec<FlowSchema>, levels: &[PriorityLevelConfiguration]) -> Self {
        let uids: HashMap<&str, HeaderValue> = levels
            .iter()
            .filter_map(|level| {
                let metadata = &level.metadata;
                Some((metadata.name.as_deref()?, header(metadata.uid.as_deref())?))
            })
            .collect();
        let mut read: Vec<_> = schemas
            .into_iter()
            .filter_map(|schema| {
                let spec = schema.spec?;
                let level = uids.get(spec.priority_level_configuration.name.as_str())?;
                let flow = Flow {
                    schema: header(schema.metadata.uid.as_deref())?,
                    level: level.clone(),
                };
                let rules = spec.rules.into_iter().flatten().map(Rule::of).collect();
                // Upstream's default precedence.
                let precedence = spec.matching_precedence.unwrap_or(1000);
                Some(((precedence, schema.metadata.name), (flow, rules)))
            })
            .collect();
        read.sort_by(|(one, _), (other, _)| one.cmp(other));
        Self(read.into_iter().map(|(_, flow)| flow).collect())
    }

    /// The flow of a request; none only where the mandatory schema of all other requests is
    /// missing.
    pub fn find(&self, request: &FlowRequest<'_>) -> Option<Flow> {
        let flow = self
            .0
            .iter()
            .find(|(_, rules)| rules.iter().any(|rule| rule.matches(request)))?;
        Some(flow.0.clone())
    }
}

fn header(uid: Option<&str>) -> Option<HeaderValue> {
    HeaderValue::from_str(uid?).ok()
}

/// A list in which `*` stands for everything.
#[derive(Debug)]
enum NameList {
    All,
    These(Vec<String>),
}

impl NameList {
    fn of(list: impl IntoIterator<Item = String>) -> Self {
        let list: Vec<String> = list.into_iter().collect();
        if list.iter().any(|word| word == "*") {
            Self::All
        } else {
            Self::These(list)
        }
    }

    fn have(&self, is: impl Fn(&str) -> bool) -> bool {
        match self {
            Self::All => true,
            Self::These(list) => list.iter().any(|word| is(word)),
        }
    }
}

#[derive(Debug)]
struct Rule {
    subjects: Vec<FlowSubject>,
    resources: Vec<Resources>,
    paths: Vec<Paths>,
}

impl Rule {
    fn of(rule: PolicyRulesWithSubjects) -> Self {
        Self {
            subjects: rule
                .subjects
                .into_iter()
                .filter_map(FlowSubject::of)
                .collect(),
            resources: rule
                .resource_rules
                .into_iter()
                .flatten()
                .map(Resources::of)
                .collect(),
            paths: rule
                .non_resource_rules
                .into_iter()
                .flatten()
                .map(Paths::of)
                .collect(),
        }
    }

    fn matches(&self, request: &FlowRequest<'_>) -> bool {
        self.subjects.iter().any(|subject| subject.is(request.user))
            && match request.target {
                FlowTarget::Resource { .. } => {
                    self.resources.iter().any(|rule| rule.matches(request))
                }
                FlowTarget::Path(path) => self
                    .paths
                    .iter()
                    .any(|rule| rule.matches(request.verb, path)),
            }
    }
}

#[derive(Debug)]
enum FlowSubject {
    Everybody,
    User(String),
    Group(String),
    /// All service accounts of a namespace, by what their users' names begin with.
    Accounts(String),
}

impl FlowSubject {
    fn of(subject: Subject) -> Option<Self> {
        let any = |name: String, one: fn(String) -> Self| match name.as_str() {
            "*" => Self::Everybody,
            _ => one(name),
        };
        let (user, group) = (subject.user, subject.group);
        let account = subject.service_account.map(|account| {
            let prefix = format!("{ACCOUNT}{}:", account.namespace);
            match account.name.as_str() {
                "*" => Self::Accounts(prefix),
                name => Self::User(format!("{prefix}{name}")),
            }
        });
        account
            .or_else(|| user.map(|user| any(user.name, Self::User)))
            .or_else(|| group.map(|group| any(group.name, Self::Group)))
    }

    fn is(&self, user: &UserInfo) -> bool {
        match self {
            Self::Everybody => true,
            Self::User(name) => user.name == *name,
            Self::Group(name) => user.in_group(name),
            Self::Accounts(prefix) => user.name.starts_with(prefix),
        }
    }
}

#[derive(Debug)]
struct Resources {
    verbs: NameList,
    groups: NameList,
    plurals: NameList,
    /// Whether it is for what is in no namespace.
    cluster: bool,
    namespaces: NameList,
}

impl Resources {
    fn of(rule: ResourcePolicyRule) -> Self {
        Self {
            verbs: NameList::of(rule.verbs),
            groups: NameList::of(rule.api_groups),
            plurals: NameList::of(rule.resources),
            cluster: rule.cluster_scope.unwrap_or_default(),
            namespaces: NameList::of(rule.namespaces.into_iter().flatten()),
        }
    }

    fn matches(&self, request: &FlowRequest<'_>) -> bool {
        let FlowTarget::Resource {
            group,
            plural,
            subresource,
            namespace,
        } = request.target
        else {
            return false;
        };
        let named = |word: &str| match word.split_once('/') {
            Some((whole, part)) => whole == plural && part == subresource,
            None => word == plural && subresource.is_empty(),
        };
        self.verbs.have(|verb| verb == request.verb)
            && self.plurals.have(named)
            && self.groups.have(|word| word == group)
            && if namespace.is_empty() {
                self.cluster
            } else {
                self.namespaces.have(|word| word == namespace)
            }
    }
}

#[derive(Debug)]
struct Paths {
    verbs: NameList,
    paths: NameList,
}

impl Paths {
    fn of(rule: NonResourcePolicyRule) -> Self {
        Self {
            verbs: NameList::of(rule.verbs),
            paths: NameList::of(rule.non_resource_urls),
        }
    }

    fn matches(&self, verb: &str, path: &str) -> bool {
        // `/a/*` is for what is below `/a/`.
        let named = |word: &str| match word.strip_suffix('*') {
            Some(above) if above.ends_with('/') => path.starts_with(above),
            Some(_) | None => word == path,
        };
        self.verbs.have(|word| word == verb) && self.paths.have(named)
    }
}
