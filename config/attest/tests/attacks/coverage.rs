//! Every code is raised by a test here, or in the room that raises it.

use config_protocol::Code;

/// Codes of master/attest: body sizes, rates, a policy with faults, and a person's decision.
const ELSEWHERE: [Code; 7] = [
    Code::Refused,
    Code::TooLarge,
    Code::RateLimited,
    Code::PolicyInvalid,
    Code::Queued,
    Code::QueueFull,
    Code::RequestDenied,
];

#[test]
fn every_code_of_the_verifier_has_an_attack() {
    let tests = [
        include_str!("freshness.rs"),
        include_str!("keys.rs"),
        include_str!("privileged.rs"),
        include_str!("state.rs"),
        include_str!("identity.rs"),
        include_str!("listing.rs"),
        include_str!("addresses.rs"),
        include_str!("claimant.rs"),
        include_str!("unproven.rs"),
        include_str!("csr.rs"),
        include_str!("renewal.rs"),
        include_str!("bootstrap.rs"),
    ]
    .concat();
    let untested: Vec<String> = Code::ALL
        .iter()
        .filter(|code| !ELSEWHERE.contains(code))
        .map(|code| format!("{code:?}"))
        .filter(|name| {
            let mention = format!("Code::{name}");
            !tests.match_indices(&mention).any(|(at, _)| {
                let after = tests[at + mention.len()..].chars().next();
                !after.is_some_and(|next| next.is_ascii_alphanumeric())
            })
        })
        .collect();
    assert!(untested.is_empty(), "no attack for {untested:?}");
}
