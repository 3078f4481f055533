//! Which plugins there are, in upstream's order, and which of them are on.

use super::Plugin;
use super::namespace_lifecycle::NamespaceLifecycle;
use super::node_restriction::NodeRestriction;

/// A plugin and whether it is on where nothing is said about it.
struct Known {
    plugin: &'static dyn Plugin,
    on: bool,
}

const fn on(plugin: &'static dyn Plugin) -> Known {
    Known { plugin, on: true }
}

/// All plugins, in the order in which they are asked (upstream's).
static KNOWN: &[Known] = &[on(&NamespaceLifecycle), on(&NodeRestriction)];

/// Which plugins are on: the usual ones, and what was said otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admission {
    enabled: Vec<&'static str>,
    disabled: Vec<&'static str>,
}

impl Admission {
    /// Plugins to switch on and off, by name.
    ///
    /// Errors: the names that no plugin has, and those that are in both lists.
    pub fn new<S: AsRef<str>>(enable: &[S], disable: &[S]) -> Result<Self, String> {
        let mut admission = Self::default();
        for (names, list) in [(enable, &mut admission.enabled), (disable, &mut admission.disabled)] {
            for name in names {
                let name = name.as_ref();
                let Some(known) = Self::names().into_iter().find(|known| *known == name) else {
                    let all = Self::names().join(", ");
                    return Err(format!("there is no admission plugin {name:?}; there are: {all}"));
                };
                list.push(known);
            }
        }
        match admission.enabled.iter().find(|name| admission.disabled.contains(name)) {
            Some(both) => Err(format!("the admission plugin {both:?} is both enabled and disabled")),
            None => Ok(admission),
        }
    }

    /// Names of all plugins, in their order.
    pub fn names() -> Vec<&'static str> {
        KNOWN.iter().map(|known| known.plugin.name()).collect()
    }

    fn is_on(&self, known: &Known) -> bool {
        let name = known.plugin.name();
        self.enabled.contains(&name) || known.on && !self.disabled.contains(&name)
    }
}

/// The plugins that are on.
#[derive(Debug)]
pub(crate) struct Chain {
    plugins: Vec<&'static dyn Plugin>,
}

impl Chain {
    pub(crate) fn new(admission: &Admission) -> Self {
        let plugins = KNOWN.iter().filter(|known| admission.is_on(known)).map(|known| known.plugin).collect();
        Self { plugins }
    }

    pub(crate) fn plugins(&self) -> &[&'static dyn Plugin] {
        &self.plugins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_that_is_switched_off_is_not_in_the_chain() {
        let admission = Admission::new(&[], &["NodeRestriction"]).unwrap();
        let names: Vec<_> = Chain::new(&admission).plugins().iter().map(|plugin| plugin.name()).collect();
        assert!(names.contains(&"NamespaceLifecycle") && !names.contains(&"NodeRestriction"));
    }

    #[test]
    fn unknown_names_and_contradictions_are_refused() {
        assert!(Admission::new(&["Nonsense"], &[]).unwrap_err().contains("Nonsense"));
        assert!(Admission::new(&["NodeRestriction"], &["NodeRestriction"]).is_err());
    }
}
