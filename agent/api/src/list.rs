//! Lists objects page by page, with smaller pages where objects are large.

use crate::{Api, ApiError, get};
use serde::Deserialize;
use serde_json::Value;

/// Objects of one page.
const PAGE: u32 = 500;

/// A page of a list; its objects are not decoded yet.
#[derive(Debug, Deserialize)]
struct Page {
    metadata: PageMeta,
    items: Vec<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: String,
}

/// Hands each object of a list to `take`; returns the list's resource version, from which a watch
/// continues. The path may have a query.
///
/// A page whose answer exceeds the limit in bytes is requested again with half as many objects, and
/// so are those after it: a few large objects must not hide all others from a node.
///
/// # Errors
/// As [`get`]; `take` may have got some of the objects before.
pub async fn list(
    api: &dyn Api,
    path: &str,
    mut take: impl FnMut(Value) + Send,
) -> Result<String, ApiError> {
    let joint = if path.contains('?') { '&' } else { '?' };
    let (mut limit, mut next) = (PAGE, String::new());
    loop {
        let asked = format!("{path}{joint}limit={limit}{next}");
        match get::<Page>(api, asked).await {
            Ok(page) => {
                page.items.into_iter().for_each(&mut take);
                if page.metadata.next.is_empty() {
                    return Ok(page.metadata.resource_version);
                }
                next = format!("&continue={}", page.metadata.next);
            }
            Err(error @ ApiError::TooLarge(_)) if limit > 1 => {
                if limit == PAGE {
                    tracing::warn!(
                        path,
                        error = error.chain(),
                        "objects are so large that a page of them can't be read; listing with smaller pages"
                    );
                }
                limit /= 2;
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Call, Lines};
    use bytes::Bytes;
    use serde_json::json;
    use std::sync::Mutex;

    /// A master with objects of these sizes, of whose answers no more than `most` can be read.
    #[derive(Debug)]
    struct Large {
        sizes: Vec<usize>,
        most: usize,
        asked: Mutex<Vec<(usize, usize)>>,
    }

    impl Large {
        fn answer(&self, path: &str) -> Result<Bytes, ApiError> {
            let (path, query) = path.split_once('?').unwrap();
            assert_eq!(path, "/api/v1/pods");
            let number = |key: &str| -> Option<usize> {
                let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
                Some(pairs.find(|(name, _)| *name == key)?.1.parse().unwrap())
            };
            let (limit, from) = (number("limit").unwrap(), number("continue").unwrap_or(0));
            self.asked.lock().unwrap().push((from, limit));
            let end = self.sizes.len().min(from + limit);
            if self.sizes[from..end].iter().sum::<usize>() > self.most {
                return Err(ApiError::TooLarge(self.most));
            }
            let mut metadata = json!({"resourceVersion": "7"});
            if end < self.sizes.len() {
                metadata["continue"] = end.to_string().into();
            }
            let items: Vec<_> = (from..end).collect();
            Ok(json!({"metadata": metadata, "items": items})
                .to_string()
                .into())
        }
    }

    impl Api for Large {
        fn call(&self, call: Call) -> Answer<'_, Bytes> {
            Box::pin(std::future::ready(self.answer(&call.path)))
        }

        fn watch(&self, _: String) -> Answer<'_, Lines> {
            Box::pin(std::future::pending())
        }
    }

    /// The outcome, the objects, and which pages were asked for: from which object on, and how
    /// many.
    async fn listed(
        sizes: Vec<usize>,
        path: &str,
    ) -> (Result<String, ApiError>, Vec<usize>, Vec<(usize, usize)>) {
        let (most, asked) = (16, Mutex::default());
        let master = Large { sizes, most, asked };
        let mut seen: Vec<usize> = Vec::new();
        let outcome = list(&master, path, |item| {
            seen.push(serde_json::from_value(item).unwrap());
        });
        let outcome = outcome.await;
        (outcome, seen, master.asked.into_inner().unwrap())
    }

    #[tokio::test]
    async fn large_objects_come_in_smaller_pages_each_once() {
        // Behind a page of small ones: the page that was too large goes on from the same place.
        let sizes: Vec<_> = [vec![0; 500], vec![3; 12]].concat();
        for path in ["/api/v1/pods", "/api/v1/pods?fieldSelector=a%3Db"] {
            let (outcome, seen, asked) = listed(sizes.clone(), path).await;
            assert_eq!(outcome.unwrap(), "7");
            assert_eq!(seen, (0..512).collect::<Vec<_>>());
            let again = [500, 250, 125, 62, 31, 15, 7, 3].map(|limit| (500, limit));
            let rest = [503, 506, 509].map(|from| (from, 3));
            assert_eq!(asked, [&[(0, 500)][..], &again, &rest].concat());
        }
    }

    #[tokio::test]
    async fn an_object_that_is_too_large_alone_ends_the_list() {
        let (outcome, seen, asked) = listed(vec![0, 17], "/api/v1/pods").await;
        assert!(matches!(outcome, Err(ApiError::TooLarge(16))));
        assert_eq!((seen, asked.last()), (vec![0], Some(&(1, 1))));
    }
}
