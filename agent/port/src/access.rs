//! Authorization of the kubelet's API by SubjectAccessReview, cached for a short time.
//!
//! A caller shows a certificate of the cluster or sends a token, which the master reviews
//! (`TokenReview`). The master also decides whether the caller may (`SubjectAccessReview`), so that
//! rights are granted and revoked in one place. The master itself is identified by its certificate:
//! it has authorized the request already, and is not asked again.
//!
//! Bounds: the number of cached answers and their lifetimes, the number of concurrent reviews and
//! their time. If a caller cannot be reviewed, it is refused.

use crate::caller::{Caller, ClusterUser};
use crate::needed_right::NeededRight;
use http::{HeaderMap, Method, StatusCode, header};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

/// Cached answers of each kind.
const MAX_CACHED: usize = 512;
/// How long a "yes" is cached: a revoked right ends after this time.
pub const GRANTED: Duration = Duration::from_secs(30);
/// How long a "no" is cached.
pub const REFUSED: Duration = Duration::from_secs(10);
/// Reviews at once.
const REVIEWS: usize = 16;
/// Longest time for a review, with the wait for its turn.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest token.
const MAX_TOKEN: usize = 16 << 10;

/// What the master decides.
pub trait Reviews: Send + Sync {
    /// The user of a token; `None` if it is not valid.
    ///
    /// # Errors
    /// The master was not reached, or gave no verdict: it is not known whose the token is.
    fn token(
        &self,
        token: &str,
    ) -> impl Future<Output = Result<Option<ClusterUser>, Unreviewed>> + Send;

    /// Whether a user has a right to a subresource of this node.
    ///
    /// # Errors
    /// As [`Self::token`]: it is not known whether the user may, which is no permission.
    fn may(
        &self,
        user: &ClusterUser,
        verb: &str,
        subresource: &str,
    ) -> impl Future<Output = Result<bool, Unreviewed>> + Send;
}

/// The master can't be asked.
#[derive(Debug, thiserror::Error)]
#[error("the master can't be asked: {0}")]
pub struct Unreviewed(pub String);

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Denied {
    /// The answer's status.
    pub status: StatusCode,
    /// For a person.
    pub message: String,
}

/// The cached decisions about callers.
#[derive(Debug, Clone)]
pub struct Access {
    tokens: Arc<Memory<Option<Arc<ClusterUser>>>>,
    rights: Arc<Memory<bool>>,
    turns: Arc<Semaphore>,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            tokens: Arc::default(),
            rights: Arc::default(),
            turns: Arc::new(Semaphore::new(REVIEWS)),
        }
    }
}

impl Access {
    /// Decides whether a request is answered.
    ///
    /// # Errors
    /// 401: unauthenticated. 403: the SubjectAccessReview denies it. 503: the API server is
    /// unreachable.
    pub async fn admit(
        &self,
        reviews: &impl Reviews,
        caller: &Caller,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(), Denied> {
        let user = match caller {
            Caller::Master => return Ok(()),
            Caller::User(user) => user.clone(),
            Caller::Nobody => self.named(reviews, headers).await?,
        };
        let NeededRight { verb, subresources } = NeededRight::of(method, path);
        for subresource in subresources {
            if self.may(reviews, &user, verb, subresource).await? {
                return Ok(());
            }
        }
        let (name, all) = (&user.name, subresources.join(" "));
        Err(Denied {
            status: StatusCode::FORBIDDEN,
            message: format!(
                "Forbidden (user={name}, verb={verb}, resource=nodes, subresource(s)=[{all}])"
            ),
        })
    }

    /// The user of a request's token.
    async fn named(
        &self,
        reviews: &impl Reviews,
        headers: &HeaderMap,
    ) -> Result<Arc<ClusterUser>, Denied> {
        let unauthorized = || Denied {
            status: StatusCode::UNAUTHORIZED,
            message: "Unauthorized".to_owned(),
        };
        let token = bearer(headers).ok_or_else(unauthorized)?;
        let key: Key = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.tokens.get(&key) {
            return known.ok_or_else(unauthorized);
        }
        let user = self.review(reviews.token(token)).await?.map(Arc::new);
        let life = if user.is_some() { GRANTED } else { REFUSED };
        self.tokens.put(key, user.clone(), life);
        user.ok_or_else(unauthorized)
    }

    async fn may(
        &self,
        reviews: &impl Reviews,
        user: &ClusterUser,
        verb: &str,
        subresource: &str,
    ) -> Result<bool, Denied> {
        let mut digest = Sha256::new();
        for part in user.parts().chain([verb, subresource]) {
            // The length prefixes keep the parts apart.
            digest.update(part.len().to_be_bytes());
            digest.update(part);
        }
        let key: Key = digest.finalize().into();
        if let Some(known) = self.rights.get(&key) {
            return Ok(known);
        }
        let granted = self.review(reviews.may(user, verb, subresource)).await?;
        let life = if granted { GRANTED } else { REFUSED };
        self.rights.put(key, granted, life);
        Ok(granted)
    }

    /// Waits for a free slot, then for the review's answer.
    async fn review<T>(
        &self,
        review: impl Future<Output = Result<T, Unreviewed>>,
    ) -> Result<T, Denied> {
        let reviewing = async {
            let turn = self.turns.acquire().await;
            let _turn = turn.map_err(|error| Unreviewed(error.to_string()))?;
            review.await
        };
        let outcome = timeout(PATIENCE, reviewing).await;
        let outcome = outcome.unwrap_or_else(|elapsed| Err(Unreviewed(elapsed.to_string())));
        outcome.map_err(|error| Denied {
            status: StatusCode::SERVICE_UNAVAILABLE,
            message: error.to_string(),
        })
    }
}

/// The token of a request.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.trim().split_once(' ')?;
    let token = token.trim();
    let fits =
        scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= MAX_TOKEN;
    fits.then_some(token)
}

type Key = [u8; 32];

/// Cached answers by the digest of the question, so that no token is kept.
#[derive(Debug)]
struct Memory<V>(Mutex<HashMap<Key, (V, Instant)>>);

impl<V> Default for Memory<V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<V: Clone> Memory<V> {
    fn get(&self, key: &Key) -> Option<V> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (value, end) = all.get(key)?;
        (Instant::now() < *end).then(|| value.clone())
    }

    fn put(&self, key: Key, value: V, life: Duration) {
        let now = Instant::now();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_CACHED {
            all.retain(|_, (_, end)| now < *end);
        }
        if all.len() >= MAX_CACHED
            && let Some(first) = all.iter().min_by_key(|(_, (_, end))| *end)
        {
            let first = *first.0;
            all.remove(&first);
        }
        all.insert(key, (value, now + life));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// A master that knows one token, and one right.
    #[derive(Default)]
    struct Master {
        gone: AtomicBool,
        refuses: AtomicBool,
        reviews: AtomicUsize,
    }

    impl Reviews for Master {
        async fn token(&self, token: &str) -> Result<Option<ClusterUser>, Unreviewed> {
            self.reviews.fetch_add(1, Ordering::AcqRel);
            Ok((token == "good").then(|| ClusterUser::named("reader", &["readers"])))
        }

        async fn may(
            &self,
            user: &ClusterUser,
            verb: &str,
            what: &str,
        ) -> Result<bool, Unreviewed> {
            self.reviews.fetch_add(1, Ordering::AcqRel);
            if self.gone.load(Ordering::Acquire) {
                return Err(Unreviewed("no connection".to_owned()));
            }
            let refuses = self.refuses.load(Ordering::Acquire);
            Ok(!refuses && (&*user.name, verb, what) == ("reader", "get", "metrics"))
        }
    }

    fn with(token: &str) -> HeaderMap {
        let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
        HeaderMap::from_iter([(header::AUTHORIZATION, value)])
    }

    async fn ask(
        access: &Access,
        master: &Master,
        caller: &Caller,
        path: &str,
        headers: &HeaderMap,
    ) -> u16 {
        let admitted = access
            .admit(master, caller, &Method::GET, path, headers)
            .await;
        admitted.map_or_else(|denied| denied.status.as_u16(), |()| 200)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_of_the_master_is_cached_for_a_short_time() {
        let (access, master) = (Access::default(), Master::default());
        let (good, bad, none) = (with("good"), with("bad"), HeaderMap::new());
        let nobody = Caller::Nobody;
        assert_eq!(ask(&access, &master, &nobody, "/metrics", &none).await, 401);
        assert_eq!(master.reviews.load(Ordering::Acquire), 0);
        for _ in 0..3 {
            assert_eq!(ask(&access, &master, &nobody, "/metrics", &bad).await, 401);
            assert_eq!(ask(&access, &master, &nobody, "/metrics", &good).await, 200);
            assert_eq!(ask(&access, &master, &nobody, "/pods", &good).await, 403);
            assert_eq!(
                ask(&access, &master, &nobody, "/exec/a/b/c", &good).await,
                403
            );
        }
        // Two tokens; metrics, pods, and proxy with two verbs.
        assert_eq!(master.reviews.load(Ordering::Acquire), 6);
        master.refuses.store(true, Ordering::Release);
        assert_eq!(ask(&access, &master, &nobody, "/metrics", &good).await, 200);
        tokio::time::advance(GRANTED).await;
        assert_eq!(ask(&access, &master, &nobody, "/metrics", &good).await, 403);
        master.refuses.store(false, Ordering::Release);
        tokio::time::advance(REFUSED).await;
        assert_eq!(ask(&access, &master, &nobody, "/metrics", &good).await, 200);
    }

    #[tokio::test]
    async fn the_master_needs_no_review_and_callers_without_one_are_refused() {
        let (access, master) = (Access::default(), Master::default());
        master.gone.store(true, Ordering::Release);
        let none = HeaderMap::new();
        let known = Caller::Master;
        assert_eq!(
            ask(&access, &master, &known, "/exec/a/b/c", &none).await,
            200
        );
        let user = Caller::User(Arc::new(ClusterUser::named("reader", &[])));
        assert_eq!(ask(&access, &master, &user, "/metrics", &none).await, 503);
        master.gone.store(false, Ordering::Release);
        assert_eq!(ask(&access, &master, &user, "/metrics", &none).await, 200);
    }

    #[test]
    fn the_number_of_cached_answers_is_bounded() {
        let memory = Memory::default();
        for number in 0..MAX_CACHED * 2 {
            let key: Key = Sha256::digest(number.to_be_bytes()).into();
            memory.put(key, number, GRANTED);
        }
        assert_eq!(memory.0.lock().unwrap().len(), MAX_CACHED);
        let last: Key = Sha256::digest((MAX_CACHED * 2 - 1).to_be_bytes()).into();
        assert_eq!(memory.get(&last), Some(MAX_CACHED * 2 - 1));
    }
}
