//! The check of the claim that pods on the machine may be privileged.
//!
//! The agent makes the claim about its own configuration, and Q covers it. Where the image is
//! attested, so is the agent, and the claim is as trustworthy as the image. Elsewhere it proves
//! nothing, like every other claim.

use crate::policy::CheckedRule;
use crate::verdict::Checks;
use config_protocol::Code;
use config_protocol::wire::Claims;

/// Checks that the rule takes machines with privileged pods, if the machine claims to be one.
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
