//! Pages of lists: the revision of a list, where a page starts, and the token of the next one.

use super::call::Call;
use super::read::{check_reached, matches, revision};
use super::turns::Turns;
use master_objects::store_error;
use master_schema::error::{ApiError, Reason};
use master_schema::selector::Selector;
use master_schema::validate::{Faults, FieldPath};
use master_store::{Entry, ListQuery, Reader, Revision, StoreError};
use master_wire::Continue;
use serde_json::{Value, json};

/// Group of the options' kinds.
pub(super) const META: &str = "meta.k8s.io";
/// Bytes of stored objects after which a page ends, if the client asked for pages: clients limit
/// the answers that they read. A page may have fewer objects than its limit.
const PAGE_BYTES: usize = 8 << 20;
/// The revision of the list has been compacted.
const EXPIRED: &str = "The resourceVersion for the provided list is too old.";
/// The revision of a token has been compacted, but the list can continue at the newest revision.
const INCONSISTENT: &str = "The provided continue parameter is too old to display a consistent list result. You can \
    start a new list without the continue parameter, or use the continue token in this response to retrieve the \
    remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were \
    created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

/// A page of a list.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) revision: Revision,
    pub(super) entries: Vec<Entry>,
    /// Token of the next page; empty on the last page.
    pub(super) next: String,
    pub(super) remaining: Option<usize>,
}

impl Page {
    /// The list's metadata.
    pub(super) fn metadata(&self) -> Value {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if !self.next.is_empty() {
            metadata["continue"] = self.next.clone().into();
        }
        if let Some(remaining) = self.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
        metadata
    }
}

/// Where a list begins.
struct Start {
    revision: Option<Revision>,
    after: Option<String>,
}

impl Call {
    /// Refuses invalid list options and reports all faults at once.
    fn check_list_options(&self) -> Result<(), ApiError> {
        let mut faults = Faults::default();
        let at = FieldPath::root("resourceVersionMatch");
        let (wanted, version) = (
            self.query.get("resourceVersionMatch"),
            self.query.get("resourceVersion"),
        );
        if !wanted.is_empty() {
            if version.is_empty() {
                faults.forbidden(
                    &at,
                    "resourceVersionMatch is forbidden unless resourceVersion is provided",
                );
            }
            if !self.query.get("continue").is_empty() {
                faults.forbidden(
                    &at,
                    "resourceVersionMatch is forbidden when continue is provided",
                );
            }
            faults.one_of(&at, &Value::from(wanted), &["Exact", "NotOlderThan", ""]);
            if wanted == "Exact" && version == "0" {
                faults.forbidden(
                    &at,
                    "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
                );
            }
        }
        if self.query.has("sendInitialEvents") {
            faults.forbidden(
                &FieldPath::root("sendInitialEvents"),
                "sendInitialEvents is forbidden for list",
            );
        }
        faults.into_error(META, "ListOptions", "")
    }

    /// The revision of a list, and the key after which it begins.
    async fn start(&self, reader: &dyn Reader, limited: bool) -> Result<Start, ApiError> {
        self.check_list_options()?;
        let requested = revision(self.query.get("resourceVersion"))?;
        let token = self.query.get("continue");
        if !token.is_empty() {
            if requested.is_some() {
                let text = "specifying resource version is not allowed when using continue";
                return Err(ApiError::new(Reason::BadRequest, text));
            }
            let token = Continue::parse(token)?;
            let after = self.kind.prefix(&self.target.namespace) + token.after();
            return Ok(Start {
                revision: Revision::try_from(token.rv).ok(),
                after: Some(after),
            });
        }
        let exact = match self.query.get("resourceVersionMatch") {
            "Exact" => true,
            // A list with a limit at a revision is exact, as in the first versions of the API.
            "" => limited,
            _ => false,
        };
        if let Some(requested) = requested {
            check_reached(reader, requested).await?;
        }
        Ok(Start {
            revision: requested.filter(|_| exact),
            after: None,
        })
    }

    /// A page of what the query selects.
    pub(super) async fn page(
        &self,
        reader: &dyn Reader,
        selector: &Selector,
    ) -> Result<Page, ApiError> {
        let limit = self
            .query
            .number("limit")?
            .and_then(|limit| usize::try_from(limit).ok())
            .unwrap_or(0);
        let start = self.start(reader, limit > 0).await?;
        let base = self.kind.prefix(&self.target.namespace);
        // With selectors, it is not known how many entries must be read for a page.
        let store_limit = if selector.is_empty() { limit } else { 0 };
        let query = ListQuery {
            prefix: self.scope(selector),
            revision: start.revision,
            after: start.after.clone(),
            limit: store_limit,
        };
        let listing = reader.list(query).await;
        let listing = listing.map_err(|error| expired(error, start.after.as_deref(), &base))?;
        let mut entries = listing.entries;
        let mut more = listing.remaining > 0;
        if !selector.is_empty() {
            (entries, more) = select(entries, selector, limit).await?;
        }
        let fit = if limit > 0 {
            fitting(&entries)
        } else {
            entries.len()
        };
        let cut = entries.len() - fit;
        entries.truncate(fit);
        more |= cut > 0;
        let mut next = String::new();
        if more && let Some(last) = entries.last() {
            let after = last.key.strip_prefix(&base).unwrap_or_default();
            next = Continue::new(Some(listing.revision), after).text();
        }
        let remaining = (more && selector.is_empty()).then_some(listing.remaining + cut);
        Ok(Page {
            revision: listing.revision,
            entries,
            next,
            remaining,
        })
    }
}

/// The error of a list whose revision has been compacted: a continued list gets a token to go on
/// with.
fn expired(error: StoreError, after: Option<&str>, base: &str) -> ApiError {
    if !matches!(error, StoreError::Compacted { .. }) {
        return store_error(error);
    }
    let Some(after) = after.and_then(|after| after.strip_prefix(base)) else {
        return ApiError::new(Reason::Expired, EXPIRED);
    };
    let mut error = ApiError::new(Reason::Expired, INCONSISTENT);
    error.details.continue_token = Continue::new(None, after).text();
    error
}

/// How many entries a page has room for: one at least.
fn fitting(entries: &[Entry]) -> usize {
    let mut bytes = 0;
    let fit = entries.iter().position(|entry| {
        bytes += entry.value.len();
        bytes > PAGE_BYTES
    });
    fit.map_or(entries.len(), |fit| fit.max(1))
}

/// The selected entries, at most `limit` (0: all), and whether there are more.
async fn select(
    entries: Vec<Entry>,
    selector: &Selector,
    limit: usize,
) -> Result<(Vec<Entry>, bool), ApiError> {
    let (mut kept, mut turns) = (Vec::new(), Turns::default());
    for entry in entries {
        turns.pause(entry.value.len()).await;
        if matches(&entry, selector)? {
            if limit > 0 && kept.len() == limit {
                return Ok((kept, true));
            }
            kept.push(entry);
        }
    }
    Ok((kept, false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turns::TURN;
    use crate::turns::tests::{map_entry, polled};
    use master_kinds::builtin;

    #[test]
    fn a_selection_among_many_lets_other_tasks_run_in_between() {
        let registry = builtin::registry();
        let kind = registry.find("", "v1", "configmaps").unwrap();
        let entry = map_entry();
        let selector = Selector::parse(kind, "a!=b", "").unwrap();
        let (selected, yielded) = polled(select(vec![entry; 3 * TURN], &selector, 0));
        let (kept, more) = selected.unwrap();
        assert!(yielded >= 2, "{yielded}");
        assert_eq!((kept.len(), more), (3 * TURN, false));
    }
}
