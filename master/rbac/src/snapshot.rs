//! Roles and bindings, indexed by subject, and decisions over them.

use crate::object::{Binding, GROUP, Role, RoleRef, Subject};
use crate::rule::{Request, Rule, Who};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// Namespace (empty for the whole cluster) and name.
type Key = (Box<str>, Box<str>);

fn key(namespace: &str, name: &str) -> Key {
    (namespace.into(), name.into())
}

/// Bindings by the name of a subject.
type Index = HashMap<Box<str>, Vec<Arc<Binding>>>;

/// Bindings of one scope, indexed by subject.
#[derive(Debug, Default, Clone)]
struct Scope {
    users: Index,
    groups: Index,
}

impl Scope {
    fn index(&mut self, subject: &Subject, namespace: &str) -> Option<(&mut Index, Box<str>)> {
        match subject.kind.as_str() {
            "User" => Some((&mut self.users, subject.name.as_str().into())),
            "Group" => Some((&mut self.groups, subject.name.as_str().into())),
            "ServiceAccount" => {
                account(subject, namespace).map(|name| (&mut self.users, name.into()))
            }
            _ => None,
        }
    }

    fn insert(&mut self, binding: &Arc<Binding>) {
        for subject in &binding.subjects {
            if let Some((index, name)) = self.index(subject, &binding.metadata.namespace) {
                let list = index.entry(name).or_default();
                // Nothing else is inserted before all subjects of this one are.
                let is_last = |last: &Arc<Binding>| Arc::ptr_eq(last, binding);
                if !list.last().is_some_and(is_last) {
                    list.push(binding.clone());
                }
            }
        }
    }

    fn remove(&mut self, binding: &Arc<Binding>) {
        for subject in &binding.subjects {
            let Some((index, name)) = self.index(subject, &binding.metadata.namespace) else {
                continue;
            };
            if let Some(list) = index.get_mut(&name) {
                list.retain(|known| !Arc::ptr_eq(known, binding));
                if list.is_empty() {
                    index.remove(&name);
                }
            }
        }
    }

    /// The bindings of a user; one with several matching subjects may occur several times.
    fn of<'a>(&'a self, who: &Who<'a>) -> impl Iterator<Item = &'a Arc<Binding>> {
        let groups = who
            .groups
            .iter()
            .filter_map(|group| self.groups.get(group.as_str()));
        self.users.get(who.name).into_iter().chain(groups).flatten()
    }
}

/// The user name of a service account subject; `None` without any namespace.
fn account(subject: &Subject, here: &str) -> Option<String> {
    let namespace = if subject.namespace.is_empty() {
        here
    } else {
        &subject.namespace
    };
    (!namespace.is_empty()).then(|| format!("system:serviceaccount:{namespace}:{}", subject.name))
}

fn binds(subject: &Subject, here: &str, who: &Who<'_>, groups: &HashSet<&str>) -> bool {
    match subject.kind.as_str() {
        "User" => subject.name == who.name,
        "Group" => groups.contains(&*subject.name),
        "ServiceAccount" => account(subject, here).is_some_and(|name| name == who.name),
        _ => false,
    }
}

/// Groups of a user up to which a decision may read the rules of one binding for each of them.
const FEW_GROUPS: usize = 16;

/// A decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Allowed, and by which binding.
    Allowed(String),
    /// No rule allows it; the text lists roles that could not be found.
    NoOpinion(String),
}

/// The rules of a user in a namespace, and the roles that could not be found.
#[derive(Debug, Clone, Default)]
pub struct Grants {
    /// The rules, in the order of the bindings.
    pub rules: Vec<Rule>,
    /// Roles that bindings refer to and that do not exist, in upstream's words.
    pub missing: Vec<String>,
}

/// All roles and bindings at one moment.
#[derive(Debug, Default, Clone)]
pub struct Snapshot {
    roles: HashMap<Key, Arc<Role>>,
    bindings: HashMap<Key, Arc<Binding>>,
    scopes: HashMap<Box<str>, Scope>,
}

impl Snapshot {
    /// Sets a role; cluster-wide if it has no namespace.
    pub fn set_role(&mut self, role: Role) {
        self.roles.insert(
            key(&role.metadata.namespace, &role.metadata.name),
            Arc::new(role),
        );
    }

    /// Removes a role.
    pub fn remove_role(&mut self, namespace: &str, name: &str) {
        self.roles.remove(&key(namespace, name));
    }

    /// Sets a binding; cluster-wide if it has no namespace.
    pub fn set_binding(&mut self, binding: Binding) {
        let (namespace, name) = (
            binding.metadata.namespace.clone(),
            binding.metadata.name.clone(),
        );
        self.remove_binding(&namespace, &name);
        let binding = Arc::new(binding);
        self.scopes
            .entry(namespace.as_str().into())
            .or_default()
            .insert(&binding);
        self.bindings.insert(key(&namespace, &name), binding);
    }

    /// Removes a binding.
    pub fn remove_binding(&mut self, namespace: &str, name: &str) {
        let Some(old) = self.bindings.remove(&key(namespace, name)) else {
            return;
        };
        if let Some(scope) = self.scopes.get_mut(namespace) {
            scope.remove(&old);
            if scope.users.is_empty() && scope.groups.is_empty() {
                self.scopes.remove(namespace);
            }
        }
    }

    /// The rules of the role that a binding in a namespace refers to.
    ///
    /// # Errors
    /// The role does not exist.
    pub fn referred(&self, role: &RoleRef, namespace: &str) -> Result<&[Rule], Missing> {
        let place = if role.kind == "Role" { namespace } else { "" };
        let found = self.roles.get(&key(place, &role.name));
        found
            .map(|role| role.rules.as_slice())
            .ok_or_else(|| Missing {
                cluster: role.kind != "Role",
                name: role.name.clone(),
            })
    }

    fn bindings<'a>(
        &'a self,
        who: &'a Who<'a>,
        namespace: &str,
    ) -> impl Iterator<Item = &'a Arc<Binding>> {
        let local = if namespace.is_empty() {
            None
        } else {
            self.scopes.get(namespace)
        };
        self.scopes
            .get("")
            .into_iter()
            .chain(local)
            .flat_map(|scope| scope.of(who))
    }

    /// Decides a request of a user.
    pub fn decide(&self, who: &Who<'_>, request: &Request<'_>) -> Verdict {
        let mut missing = Vec::new();
        // A review can name thousands of groups, and a binding too: its rules are read once.
        let mut seen = HashSet::new();
        let is_long = who.groups.len() > FEW_GROUPS;
        let bindings = self.bindings(who, request.namespace());
        for binding in bindings.filter(|one| !is_long || seen.insert(Arc::as_ptr(one))) {
            match self.referred(&binding.role_ref, &binding.metadata.namespace) {
                Ok(rules) if rules.iter().any(|rule| rule.allows(request)) => {
                    return Verdict::Allowed(format!("RBAC: allowed by {}", By { binding, who }));
                }
                Ok(_) => {}
                Err(role) => missing.push(role.to_string()),
            }
        }
        Verdict::NoOpinion(if missing.is_empty() {
            String::new()
        } else {
            format!("RBAC: {}", joined(missing))
        })
    }

    /// All rules of a user in a namespace, cluster-wide ones included.
    pub fn grants(&self, who: &Who<'_>, namespace: &str) -> Grants {
        let mut grants = Grants::default();
        let mut seen = HashSet::new();
        for binding in self.bindings(who, namespace) {
            if !seen.insert(Arc::as_ptr(binding)) {
                continue;
            }
            match self.referred(&binding.role_ref, &binding.metadata.namespace) {
                Ok(rules) => grants.rules.extend_from_slice(rules),
                Err(role) => grants.missing.push(role.to_string()),
            }
        }
        grants
    }
}

/// Several errors as upstream's aggregate prints them, without duplicates.
pub(crate) fn joined(mut texts: Vec<String>) -> String {
    let mut known: HashSet<String> = HashSet::new();
    texts.retain(|text| known.insert(text.clone()));
    match texts.as_slice() {
        [only] => only.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// A role that a binding refers to and that does not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Whether it is a cluster role.
    pub cluster: bool,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.cluster { "clusterrole" } else { "role" };
        write!(f, "{kind}.{GROUP} {:?} not found", self.name)
    }
}

/// The binding that grants a right.
struct By<'a> {
    binding: &'a Binding,
    who: &'a Who<'a>,
}

impl fmt::Display for By<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Binding {
            metadata,
            subjects,
            role_ref,
        } = self.binding;
        let (kind, name) = match metadata.namespace.as_str() {
            "" => ("ClusterRoleBinding", metadata.name.clone()),
            namespace => ("RoleBinding", format!("{}/{namespace}", metadata.name)),
        };
        write!(
            f,
            "{kind} {name:?} of {} {:?}",
            role_ref.kind, role_ref.name
        )?;
        let groups: HashSet<&str> = self.who.groups.iter().map(String::as_str).collect();
        match subjects
            .iter()
            .find(|subject| binds(subject, &metadata.namespace, self.who, &groups))
        {
            Some(subject) => write!(f, " to {subject}"),
            None => Ok(()),
        }
    }
}
