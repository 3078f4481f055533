//! Get and list.

use super::answer::{Answer, value_answer};
use super::call::Call;
use super::network_only;
use super::page::Page;
use super::turns::{TURN, Turns};
use http::StatusCode;
use master_client::HeldBytes;
use master_objects::{StoredBytes, StoredPart, store_error};
use master_schema::error::{ApiError, Reason, shown};
use master_schema::registry::Kind;
use master_schema::selector::Selector;
use master_store::{Entry, Reader, Revision, StoreError};
use master_wire::respond::{json_bytes, protobuf_bytes};
use master_wire::table::Include;
use master_wire::{Accept, Form, Item, PIECE, Pieces, Syntax, protobuf};
use serde_json::{Value, json};

/// Shared objects of a list after which other tasks run.
const SHARED_TURN: usize = 32 * TURN;

/// One object, at least as new as the query asks for.
pub(super) async fn get(call: &Call, reader: &dyn Reader) -> Answer {
    if let Some(requested) = revision(call.query.get("resourceVersion"))? {
        check_reached(reader, requested).await?;
    }
    let entry = call.entry(reader).await?;
    call.object_answer(StatusCode::OK, &entry)
}

/// The resource version of a request; `None` for "any" and "newest".
pub(super) fn revision(text: &str) -> Result<Option<Revision>, ApiError> {
    match text {
        "" | "0" => Ok(None),
        text => text.parse().map(Some).map_err(|error| {
            let text = format!(
                "invalid resource version: resourceVersion: Invalid value: {:?}: {error}",
                shown(text)
            );
            ApiError::new(Reason::BadRequest, text)
        }),
    }
}

/// Refuses a resource version that is newer than the store's.
pub(super) async fn check_reached(
    reader: &dyn Reader,
    requested: Revision,
) -> Result<(), ApiError> {
    let head = reader.revision().await.map_err(store_error)?;
    if requested > head {
        return Err(store_error(StoreError::Future {
            asked: requested,
            head,
        }));
    }
    Ok(())
}

impl Call {
    /// The selectors of the query, and the name in the path of a legacy watch.
    pub(super) fn selector(&self) -> Result<Selector, ApiError> {
        let parsed = Selector::parse(
            &self.kind,
            self.query.get("labelSelector"),
            self.query.get("fieldSelector"),
        )?;
        let name = &self.target.name;
        match parsed.exact("metadata.name") {
            _ if name.is_empty() => Ok(parsed),
            Some(own) if own == name => Ok(parsed),
            None if self.query.get("fieldSelector").is_empty() => Ok(parsed.named(name)),
            Some(_) | None => {
                let text = "fieldSelector metadata.name doesn't match requested name";
                Err(ApiError::new(Reason::BadRequest, text))
            }
        }
    }

    /// The key prefix of what is listed or watched; one object's key if only one can match.
    pub(super) fn scope(&self, selector: &Selector) -> String {
        let prefix = self.kind.prefix(&self.target.namespace);
        match selector.exact("metadata.name") {
            Some(name) if !self.kind.namespaced || !self.target.namespace.is_empty() => {
                prefix + name
            }
            Some(_) | None => prefix,
        }
    }
}

/// Whether a stored object is selected.
pub(super) fn matches(entry: &Entry, selector: &Selector) -> Result<bool, ApiError> {
    if !selector.may_match(&entry.value.bytes()) {
        return Ok(false);
    }
    Ok(selector.is_empty() || selector.matches(&Value::Object(master_objects::stored(entry)?)))
}

/// Lists objects.
pub(super) async fn list(call: &Call, reader: &dyn Reader) -> Answer {
    call.accept()?;
    let page = call.page(reader, &call.selector()?).await?;
    answer(call, &page).await
}

/// A page as an answer, in the form that the client accepts.
pub(super) async fn answer(call: &Call, page: &Page) -> Answer {
    let accept = call.accept()?;
    let metadata = page.metadata();
    // The last turn ends once the answer is written.
    let (mut items, mut turns) = (Vec::new(), Turns::of(&call.user.name));
    if call.is_network_only()? {
        for entry in &page.entries {
            turns.hold(entry.value.len()).await;
            let pod = master_objects::decode_without_managed(&call.kind, entry)?;
            items.push(network_only::of_pod(&pod));
        }
        let list =
            json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items});
        return value_answer(StatusCode::OK, &list, accept);
    }
    if accept.syntax == Syntax::Protobuf {
        return protobuf_list(call, page, accept, turns).await;
    }
    let in_json = accept.syntax == Syntax::Json;
    let read = match accept.form {
        Form::Object if in_json => {
            return list_bytes(&call.kind, page, StoredPart::Whole).await;
        }
        Form::PartialList(version) if in_json => {
            return list_bytes(&call.kind, page, StoredPart::Metadata(version)).await;
        }
        Form::Table(_) if Include::of(call.query.get("includeObject"))? != Include::Object => {
            master_objects::decode_without_managed
        }
        Form::Table(_) | Form::Object | Form::Partial(_) | Form::PartialList(_) => {
            master_objects::decode
        }
    };
    let shape = call.list_shape(accept)?;
    for entry in &page.entries {
        turns.hold(entry.value.len()).await;
        items.push(call.list_item(shape, read(&call.kind, entry)?));
    }
    call.list_answer(accept, shape, &metadata, items)
}

/// A list in protobuf: its length comes before its items, so it is held until it is read, but no
/// item is held decoded.
async fn protobuf_list(call: &Call, page: &Page, accept: Accept, mut turns: Turns) -> Answer {
    let shape = call.list_shape(accept)?;
    let (kind, version) = call.list_type(shape);
    let mut list = protobuf::List::new(&version, &kind, &page.metadata())?;
    for entry in &page.entries {
        turns.hold(entry.value.len()).await;
        let object = master_objects::decode(&call.kind, entry)?;
        list.push(&call.list_item(shape, object))?;
    }
    Ok(protobuf_bytes(StatusCode::OK, list.finish()))
}

/// An object of a list: its revision, and the part of it that the answer has.
struct ListItem {
    revision: Revision,
    bytes: StoredBytes,
}

impl Item for ListItem {
    fn revision(&self) -> Revision {
        self.revision
    }

    fn size(&self) -> usize {
        self.bytes.len()
    }

    fn put(&self, piece: &mut Vec<u8>) {
        self.bytes.put(piece);
    }
}

/// A list's JSON, assembled from the stored bytes.
async fn list_bytes(kind: &Kind, page: &Page, part: StoredPart) -> Answer {
    let own = kind.api_version();
    let (name, version) = match part {
        StoredPart::Whole => (kind.kind.as_str(), own.as_str()),
        StoredPart::Metadata(version) => ("PartialObjectMetadata", version),
    };
    let metadata = page.metadata();
    let start = format!(
        r#"{{"kind":"{name}List","apiVersion":"{version}","metadata":{metadata},"items":["#
    );
    // Whole objects are shared: their bytes are not looked at.
    let shared = kind.stored_as_served() && matches!(part, StoredPart::Whole);
    let (mut items, mut turns) = (Vec::with_capacity(page.entries.len()), Turns::default());
    for (at, entry) in page.entries.iter().enumerate() {
        if !shared {
            turns.pause(entry.value.len()).await;
        } else if at % SHARED_TURN == SHARED_TURN - 1 {
            tokio::task::yield_now().await;
        }
        items.push(ListItem {
            revision: entry.modified,
            bytes: master_objects::stored_bytes(kind, entry, part)?,
        });
    }
    // The stored bytes are the store's own. This answer holds only the list of items and one piece.
    let held = if kind.stored_as_served() {
        items.len() * size_of::<ListItem>() + PIECE
    } else {
        items.iter().map(Item::size).sum()
    };
    let first = master_objects::head(kind, part).into();
    let mut response = json_bytes(StatusCode::OK, Vec::new());
    *response.body_mut() = Pieces::new(start.into(), first, part.tail(), items).body();
    response.extensions_mut().insert(HeldBytes(held));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::turns::tests::{map_entry, polled};
    use master_kinds::builtin;

    #[test]
    fn a_list_of_many_lets_other_tasks_run_in_between() {
        let registry = builtin::registry();
        let kind = registry.find("", "v1", "configmaps").unwrap();
        let entry = map_entry();
        let parts = [
            (StoredPart::Whole, SHARED_TURN),
            (StoredPart::Metadata("meta.k8s.io/v1"), TURN),
        ];
        for (part, turn) in parts {
            let page = Page {
                revision: 5,
                entries: vec![entry.clone(); 3 * turn],
                next: String::new(),
                remaining: None,
            };
            let (answer, yielded) = polled(list_bytes(kind, &page, part));
            assert!(yielded >= 2, "{part:?}: {yielded}");
            assert!(answer.is_ok(), "{part:?}");
        }
    }
}
