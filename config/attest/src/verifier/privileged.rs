//! Whether the machine's pods may be its root.
//!
//! The claim is the agent's own word on its configuration, covered by Q. Where the image is proved the agent is, and its word
//! is as good; where it is not, the claim is no more than a claim, as everything else of that machine.

use crate::code::Code;
use crate::policy::CheckedRule;
use crate::verdict::Checks;
use crate::wire::Claims;

/// A machine whose pods may be privileged needs a rule that takes such machines; one that claims nothing has nothing to show.
pub(super) fn check(claims: &Claims, rule: &CheckedRule, checks: &mut Checks) {
    if claims.privileged_pods {
        let wanted = if rule.privileged_pods {
            "allowed or not"
        } else {
            "not allowed on the machine"
        };
        checks.test(
            "privileged pods",
            Code::PrivilegedPods,
            rule.privileged_pods,
            wanted,
            "allowed by its configuration",
        );
    }
}
