//! The user that a client certificate names.

use super::credential::CREDENTIAL;
use config_kube::identity;
use master_client::UserInfo;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Subject attribute that carries a user's UID (upstream's).
const UID: &str = "1.3.6.1.4.1.57683.2";

/// The user that a verified certificate names: common name and organizations (as upstream), the UID
/// if present, and the certificate's fingerprint as the credential.
///
/// `None` if the certificate cannot be parsed or has no common name.
pub fn of_certificate(leaf: &[u8]) -> Option<UserInfo> {
    let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?;
    if name.is_empty() {
        return None;
    }
    let groups: Vec<String> = subject
        .iter_organization()
        .filter_map(|group| group.as_str().ok())
        .map(str::to_owned)
        .collect();
    // Groups that only the server assigns: it adds the first of them itself.
    let own = [
        identity::AUTHENTICATED_GROUP,
        identity::UNAUTHENTICATED_GROUP,
    ];
    let mut user = UserInfo::authenticated(
        name,
        groups
            .into_iter()
            .filter(|group| !own.contains(&group.as_str())),
    );
    let mut uids = subject
        .iter_attributes()
        .filter(|attribute| attribute.attr_type().to_id_string() == UID);
    if let Some(uid) = uids.next().and_then(|uid| uid.as_str().ok()) {
        uid.clone_into(&mut user.uid);
    }
    let hash = hex::encode(ring::digest::digest(&ring::digest::SHA256, leaf));
    user.extra
        .insert(CREDENTIAL.to_owned(), vec![format!("X509SHA256={hash}")]);
    Some(user)
}
