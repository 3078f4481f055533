//! Get and list.

use super::{Call, json_bytes, store_error, value_answer};
use crate::accept::Form;
use crate::error::{ApiError, Reason};
use crate::object;
use crate::selector::Selector;
use crate::server::Body;
use crate::table;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Response, StatusCode};
use master_store::{Entry, ListQuery, Revision};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// One object.
pub(super) async fn get(call: &Call) -> Result<Response<Body>, ApiError> {
    let entry = call.entry().await?;
    call.object_answer(StatusCode::OK, &entry)
}

/// Where the next page starts. Opaque to clients.
#[derive(Debug, Serialize, Deserialize)]
struct Continue {
    rv: Revision,
    after: String,
}

impl Continue {
    fn parse(token: &str) -> Result<Self, ApiError> {
        let bytes = URL_SAFE_NO_PAD.decode(token).ok();
        bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).ok_or_else(|| {
            ApiError::new(Reason::BadRequest, "invalid continue token: it is not one that this server gave out")
        })
    }

    fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode(json!({"rv": self.rv, "after": self.after}).to_string())
    }
}

/// A page of a list.
pub(super) struct Page {
    pub(super) revision: Revision,
    pub(super) entries: Vec<Entry>,
    pub(super) next: String,
    pub(super) remaining: Option<usize>,
}

/// A resource version of a request; none for "any" and "newest".
pub(super) fn revision(text: &str) -> Result<Option<Revision>, ApiError> {
    match text {
        "" | "0" => Ok(None),
        text => text.parse().map(Some).map_err(|_not_a_number| {
            ApiError::new(Reason::BadRequest, format!("resourceVersion: Invalid value: {text:?}: must be a number"))
        }),
    }
}

impl Call {
    /// The selectors of the query.
    pub(super) fn selector(&self) -> Result<Selector, ApiError> {
        Selector::parse(&self.kind, self.query.get("labelSelector"), self.query.get("fieldSelector"))
    }

    /// As of which revision a list is asked for, and from where.
    async fn start(&self) -> Result<(Option<Revision>, Option<String>), ApiError> {
        let asked = revision(self.query.get("resourceVersion"))?;
        let token = self.query.get("continue");
        if !token.is_empty() {
            if asked.is_some() {
                let text = "specifying resource version is not allowed when using continue";
                return Err(ApiError::new(Reason::BadRequest, text));
            }
            let token = Continue::parse(token)?;
            let prefix = self.kind.prefix(&self.target.namespace);
            return Ok((Some(token.rv), Some(prefix + &token.after)));
        }
        match (self.query.get("resourceVersionMatch"), asked) {
            ("Exact", Some(asked)) => Ok((Some(asked), None)),
            ("" | "NotOlderThan", Some(asked)) => {
                let head = self.api.inner.store.revision().await.map_err(store_error)?;
                if asked > head {
                    return Err(store_error(master_store::StoreError::Future { asked, head }));
                }
                Ok((None, None))
            }
            ("" | "NotOlderThan", None) => Ok((None, None)),
            ("Exact", None) => Err(ApiError::new(
                Reason::BadRequest,
                "resourceVersionMatch \"Exact\" is forbidden without a resourceVersion other than \"0\"",
            )),
            (other, _) => {
                Err(ApiError::new(Reason::BadRequest, format!("resourceVersionMatch: Unsupported value: {other:?}")))
            }
        }
    }

    /// A page of what the query selects.
    pub(super) async fn page(&self, selector: &Selector) -> Result<Page, ApiError> {
        let limit = self.query.number("limit")?.unwrap_or_default();
        let limit = usize::try_from(limit).map_err(|_negative| {
            ApiError::new(Reason::BadRequest, format!("limit: Invalid value: {limit}: must not be negative"))
        })?;
        let (revision, after) = self.start().await?;
        let prefix = self.kind.prefix(&self.target.namespace);
        // With selectors, how many must be looked at for a page is not known beforehand.
        let asked = if selector.is_empty() { limit } else { 0 };
        let query = ListQuery { prefix: prefix.clone(), revision, after, limit: asked };
        let listing = self.api.inner.store.list(query).await.map_err(expired)?;
        let mut entries = listing.entries;
        let mut more = listing.remaining > 0;
        if !selector.is_empty() {
            let (kept, cut) = select(entries, selector, limit)?;
            (entries, more) = (kept, cut);
        }
        let mut next = String::new();
        if more && let Some(last) = entries.last() {
            let after = last.key.strip_prefix(&prefix).unwrap_or_default().to_owned();
            next = Continue { rv: listing.revision, after }.text();
        }
        let remaining = (more && selector.is_empty()).then_some(listing.remaining);
        Ok(Page { revision: listing.revision, entries, next, remaining })
    }
}

fn expired(error: master_store::StoreError) -> ApiError {
    let mut error = store_error(error);
    if error.reason == Reason::Expired {
        "The provided continue parameter or resourceVersion is too old to display a consistent list result. You can \
         start a new list without them"
            .clone_into(&mut error.message);
    }
    error
}

/// Entries that are selected, at most `limit` (0: all), and whether more would be.
fn select(entries: Vec<Entry>, selector: &Selector, limit: usize) -> Result<(Vec<Entry>, bool), ApiError> {
    let mut kept = Vec::new();
    for entry in entries {
        if matches(&entry, selector)? {
            if limit > 0 && kept.len() == limit {
                return Ok((kept, true));
            }
            kept.push(entry);
        }
    }
    Ok((kept, false))
}

/// Whether a stored object is selected.
pub(super) fn matches(entry: &Entry, selector: &Selector) -> Result<bool, ApiError> {
    if selector.is_empty() {
        return Ok(true);
    }
    let value: Value = serde_json::from_slice(&entry.value).map_err(|error| {
        ApiError::new(Reason::InternalError, format!("the stored object {} cannot be read: {error}", entry.key))
    })?;
    Ok(selector.matches(&value))
}

/// Many objects.
pub(super) async fn list(call: &Call) -> Result<Response<Body>, ApiError> {
    let accept = call.accept()?;
    let page = call.page(&call.selector()?).await?;
    let mut metadata = json!({"resourceVersion": page.revision.to_string()});
    if !page.next.is_empty() {
        metadata["continue"] = page.next.clone().into();
    }
    if let Some(remaining) = page.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    match accept.form {
        Form::Table => {
            value_answer(StatusCode::OK, &table::table(&call.kind, &page.entries, &metadata, &call.query)?, accept)
        }
        Form::Object if !accept.yaml => Ok(json_bytes(StatusCode::OK, list_bytes(call, &page.entries, &metadata)?)),
        Form::Object | Form::Partial => {
            let mut items = Vec::with_capacity(page.entries.len());
            for entry in &page.entries {
                let fields = object::decode(&call.kind, entry)?;
                items.push(if accept.form == Form::Partial { table::partial(&fields) } else { Value::Object(fields) });
            }
            let (kind, version) = match accept.form {
                Form::Partial => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
                Form::Object | Form::Table => (format!("{}List", call.kind.kind), call.kind.api_version()),
            };
            let list = json!({"kind": kind, "apiVersion": version, "metadata": metadata, "items": items});
            value_answer(StatusCode::OK, &list, accept)
        }
    }
}

/// A list's JSON, put together from the stored bytes.
fn list_bytes(call: &Call, entries: &[Entry], metadata: &Value) -> Result<Vec<u8>, ApiError> {
    let size: usize = entries.iter().map(|entry| entry.value.len() + 96).sum();
    let mut bytes = Vec::with_capacity(size + 256);
    let (kind, version) = (&call.kind.kind, call.kind.api_version());
    let head = format!(r#"{{"kind":"{kind}List","apiVersion":"{version}","metadata":{metadata},"items":["#);
    bytes.extend_from_slice(head.as_bytes());
    for (number, entry) in entries.iter().enumerate() {
        if number > 0 {
            bytes.push(b',');
        }
        let (head, kept) = object::parts(&call.kind, entry)?;
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(&kept);
    }
    bytes.extend_from_slice(b"]}");
    Ok(bytes)
}
