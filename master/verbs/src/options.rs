//! Checks the query of a write: reports all faults at once, under the name of the verb's options.

use super::call::Call;
use super::page::META;
use master_schema::error::ApiError;
use master_schema::validate::{Faults, FieldPath};
use master_wire::path::Verb;
use serde_json::Value;

/// Bytes of a field manager's name (upstream: `FieldManagerMaxLength`).
const MANAGER: usize = 128;
/// The patch types that are server-side apply.
const APPLY: [&str; 2] = [
    "application/apply-patch+yaml",
    "application/apply-patch+cbor",
];

impl Call {
    /// Refuses a write with invalid options.
    pub(super) fn check_write_options(&self) -> Result<(), ApiError> {
        let kind = match self.target.verb {
            Verb::Create => "CreateOptions",
            Verb::Update => "UpdateOptions",
            Verb::Patch => "PatchOptions",
            Verb::Get | Verb::List | Verb::Watch | Verb::Delete | Verb::DeleteCollection => {
                return Ok(());
            }
        };
        let mut faults = Faults::default();
        if self.target.verb == Verb::Patch {
            let apply = APPLY.contains(&self.content_type());
            if apply && self.query.get("fieldManager").is_empty() {
                let at = FieldPath::root("fieldManager");
                faults.required(&at, "is required for apply patch");
            }
            if !apply && self.query.has("force") {
                faults.forbidden(
                    &FieldPath::root("force"),
                    "may not be specified for non-apply patch",
                );
            }
        }
        manager(self.query.get("fieldManager"), &mut faults);
        self.check_dry_run(&mut faults);
        let validation = Value::from(self.query.get("fieldValidation"));
        faults.one_of(
            &FieldPath::root("fieldValidation"),
            &validation,
            &["", "Ignore", "Strict", "Warn"],
        );
        faults.into_error(META, kind, "")
    }

    /// Whether the request is a dry run.
    pub(super) fn dry_run(&self) -> Result<bool, ApiError> {
        let mut faults = Faults::default();
        let dry = self.check_dry_run(&mut faults);
        faults.into_error(META, "DeleteOptions", "")?;
        Ok(dry)
    }

    fn check_dry_run(&self, faults: &mut Faults) -> bool {
        let mut dry = false;
        for value in self.query.all("dryRun").filter(|value| !value.is_empty()) {
            faults.one_of(&FieldPath::root("dryRun"), &Value::from(value), &["All"]);
            dry = true;
        }
        dry
    }
}

fn manager(name: &str, faults: &mut Faults) {
    let at = FieldPath::root("fieldManager");
    if name.len() > MANAGER {
        faults.too_long(&at, MANAGER);
    }
    for (position, c) in name.char_indices().filter(|(_, c)| c.is_control()) {
        let code = u32::from(c);
        let detail = format!("invalid character U+{code:04X} (at position {position})");
        faults.invalid(&at, &Value::from(name), detail);
    }
}
