//! `pratique issue`: certificates and a key for a machine that proves nothing, out of band.
//!
//! The key is made here, certified by the master on the admin's approval, and wrapped to the
//! machine's endorsement key, so that only that TPM can use the document. It is never written
//! unencrypted, except with `--insecure-plaintext-key`.

use crate::error::{Error, Result};
use crate::kubeconfig::Api;
use crate::runtime::block_on;
use crate::{ek, files};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config_kube::identity::{NODES_GROUP, STATIC_CLIENT_SIGNER, STATIC_SERVING_SIGNER, node_user};
use config_kube::machine::EkSelector;
use config_kube::{FromJson as _, Machine, MachineSpec, ToJson as _};
use config_model::Document;
use config_model::format::HumanDuration;
use config_tpm::Digest;
use config_tpm::{duplicate, template};
use http::Method;
use p256::SecretKey;
use p256::ecdsa::signature::Signer as _;
use p256::pkcs8::{EncodePrivateKey as _, LineEnding};
use rcgen::{CertificateParams, DistinguishedName, DnType, PublicKeyData};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;
use zeroize::Zeroizing;

const MACHINES: &str = "/apis/pratique.dev/v1alpha1/machines";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
/// How often, and with which pause, a certificate is looked for.
const MAX_POLLS: u32 = 150;
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The machine's description.
#[derive(Debug, clap::Args)]
pub(crate) struct IssueArgs {
    /// Name of the Machine and of its Node.
    #[arg(long)]
    name: String,
    /// Its role: worker or master.
    #[arg(long, default_value = "worker", value_parser = ["worker", "master"])]
    role: String,
    /// File with the endorsement key to which the key is wrapped: its certificate, public key or
    /// TPM public area.
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "insecure_plaintext_key"
    )]
    ek: Option<PathBuf>,
    /// Write the key into the document in the clear: anyone who reads that can be the node.
    #[arg(long, conflicts_with = "ek")]
    insecure_plaintext_key: bool,
    /// The admin's kubeconfig.
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: PathBuf,
    /// Life of the certificates; they are not renewed.
    #[arg(long, default_value = "90d")]
    ttl: HumanDuration,
    /// IP address or DNS name that its serving certificate carries. Repeat for more.
    #[arg(long)]
    address: Vec<String>,
    /// Address of the machine's master [default: the kubeconfig's server]. Repeat for more.
    #[arg(long, value_name = "https://HOST:PORT")]
    endpoint: Vec<String>,
    /// The machine's document without `[identity]`, with `[master]` or `[discovery]`; made from the
    /// other arguments where none is given.
    #[arg(long, value_name = "FILE")]
    user_data: Option<PathBuf>,
    /// The file for the machine's user-data; must not exist.
    #[arg(long)]
    out: PathBuf,
}

/// Issues and writes the document.
pub(crate) fn run(args: &IssueArgs) -> Result<()> {
    block_on(issue(args))
}

async fn issue(args: &IssueArgs) -> Result<()> {
    if !master_ca::profile::is_dns_name(&args.name) {
        let cure = "use lower-case letters, digits and `-`";
        return Err(Error::input(
            format!("--name {}", args.name),
            "not a name for a node",
            cure,
        ));
    }
    if args.out.exists() {
        return Err(Error::input(
            args.out.display().to_string(),
            "it exists",
            "name a file that is not there yet",
        ));
    }
    let ek = args.ek.as_deref().map(ek::read).transpose()?;
    let mut api = Api::open(&args.kubeconfig).await?;
    let base = base(args, &api)?;
    register(args, ek.as_deref(), &mut api).await?;
    let key = GeneratedKey::new();
    let mut names = vec![args.name.clone()];
    names.extend(
        args.address
            .iter()
            .filter(|name| **name != args.name)
            .cloned(),
    );
    let client = certify(args, &mut api, &key, STATIC_CLIENT_SIGNER, Vec::new()).await?;
    let serving = certify(args, &mut api, &key, STATIC_SERVING_SIGNER, names).await?;
    let mut text = Zeroizing::new(base);
    section(&mut text, &api.roots, &client, &serving)?;
    match &ek {
        Some(spki) => wrapped(&mut text, spki, &key)?,
        None => plaintext(&mut text, &key)?,
    }
    check(&text)?;
    files::write_private(&args.out, text.as_bytes(), false)?;
    files::tell(&format!(
        "wrote {}: certificates of node {} for {}, which nobody renews; nothing about its image or configuration will be proven",
        args.out.display(),
        args.name,
        args.ttl
    ));
    Ok(())
}

/// The key, with its requests' signatures made by it; wiped when dropped.
struct GeneratedKey {
    secret: SecretKey,
    point: Vec<u8>,
}

impl GeneratedKey {
    fn new() -> Self {
        use p256::elliptic_curve::sec1::ToEncodedPoint as _;
        let secret = SecretKey::random(&mut rand_core::OsRng);
        let point = secret
            .public_key()
            .to_encoded_point(false)
            .as_bytes()
            .to_vec();
        Self { secret, point }
    }

    fn request(&self, node: &str, names: Vec<String>) -> Result<String> {
        let fail = |source| Error::Key {
            what: "make a certificate request",
            source,
        };
        let mut params = CertificateParams::new(names).map_err(fail)?;
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, NODES_GROUP);
        params
            .distinguished_name
            .push(DnType::CommonName, node_user(node));
        params
            .serialize_request(self)
            .and_then(|request| request.pem())
            .map_err(fail)
    }
}

impl PublicKeyData for GeneratedKey {
    fn der_bytes(&self) -> &[u8] {
        &self.point
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

impl rcgen::SigningKey for GeneratedKey {
    fn sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, rcgen::Error> {
        let signature: p256::ecdsa::DerSignature =
            p256::ecdsa::SigningKey::from(&self.secret).sign(message);
        Ok(signature.as_bytes().to_vec())
    }
}

/// The document without its `[identity]`.
fn base(args: &IssueArgs, api: &Api) -> Result<String> {
    let Some(path) = &args.user_data else {
        let endpoints = if args.endpoint.is_empty() {
            vec![api.server.clone()]
        } else {
            args.endpoint.clone()
        };
        let pins = api.roots.iter().filter_map(|root| master_ca::spki_of(root));
        let (name, pins) = (
            &args.name,
            pins.map(|spki| master_ca::spki_hash(&spki))
                .collect::<Vec<_>>(),
        );
        return Ok(format!(
            "version = 1\n\n[machine]\nname = \"{name}\"\n\n[master]\nendpoints = {endpoints:?}\nca_pins = {pins:?}\n"
        ));
    };
    let (text, at) = (files::read_text(path)?, path.display().to_string());
    fits(&text, at, &args.name)?;
    Ok(text)
}

/// Whether a document can be completed to one of a static machine of this name.
fn fits(text: &str, at: String, name: &str) -> Result<()> {
    match config_model::parse(text.as_bytes(), &at) {
        Ok(Document::Machine(machine)) => {
            let fault = |why: &str, cure: &str| Err(Error::input(&at, why, cure));
            if machine.identity.is_some() {
                return fault("it has an `[identity]`", "take that out; it is made here");
            }
            if machine.cluster().is_some() {
                return fault(
                    "it founds a cluster",
                    "say where the master is, by `[master]` or `[discovery]`",
                );
            }
            if machine
                .name
                .as_ref()
                .map(config_model::format::NodeName::as_str)
                != Some(name)
            {
                return fault(
                    "its `machine.name` is another",
                    "give it the name of --name",
                );
            }
            Ok(())
        }
        Ok(other) => Err(Error::input(
            at,
            format!("a document of kind `{}`", other.kind()),
            "name a machine's document",
        )),
        Err(faults) => Err(Error::Faults(faults.to_string())),
    }
}

/// Makes the Machine, or brings a static one up to these arguments.
async fn register(args: &IssueArgs, ek: Option<&[u8]>, api: &mut Api) -> Result<()> {
    let path = format!("{MACHINES}/{}", args.name);
    let encode = |machine: &Machine| {
        machine
            .to_tree()
            .map_err(|e| Error::answer(&path, &e.to_string()))
    };
    let hashes = ek
        .map(|spki| Digest::of(spki).to_text())
        .into_iter()
        .collect();
    let ek = EkSelector {
        hashes,
        ..EkSelector::default()
    };
    let Some(found) = api.call(Method::GET, &path, None).await? else {
        let (role, addresses) = (args.role.clone(), args.address.clone());
        let machine = Machine::named(
            &args.name,
            MachineSpec {
                role,
                addresses,
                ek,
                is_static: true,
                ..MachineSpec::default()
            },
        );
        return api
            .must(Method::POST, MACHINES, Some(&encode(&machine)?))
            .await
            .map(drop);
    };
    let mut machine: Machine =
        Machine::from_tree(&found).map_err(|e| Error::answer(&path, &e.to_string()))?;
    if !machine.spec.is_static {
        return Err(Error::input(
            format!("the Machine {}", args.name),
            "it proves itself, and gets its certificates for that",
            format!(
                "keep it so; or, if it can't any more, `kubectl delete machine {}` first",
                args.name
            ),
        ));
    }
    machine.spec.role.clone_from(&args.role);
    machine.spec.addresses.clone_from(&args.address);
    machine.spec.ek = ek;
    api.must(Method::PUT, &path, Some(&encode(&machine)?))
        .await
        .map(drop)
}

/// Has the master sign: a request, the admin's approval, the certificate.
async fn certify(
    args: &IssueArgs,
    api: &mut Api,
    key: &GeneratedKey,
    signer: &str,
    names: Vec<String>,
) -> Result<String> {
    let (kind, usage) = if signer == STATIC_CLIENT_SIGNER {
        ("client", "client auth")
    } else {
        ("serving", "server auth")
    };
    let pem = key.request(&args.name, names)?;
    let mut object = api.must(Method::POST, REQUESTS, Some(&json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": { "generateName": format!("{}-static-{kind}-", args.name), "labels": { "pratique.dev/machine": args.name } },
        "spec": {
            "request": STANDARD.encode(pem), "signerName": signer, "usages": ["digital signature", usage],
            "expirationSeconds": args.ttl.0.as_secs(),
        },
    }))).await?;
    let name = object
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let approved = json!([{
        "type": "Approved", "status": "True", "reason": "IssuedByAdmin", "message": "issued out of band by `pratique issue`",
    }]);
    if let Some(object) = object.as_object_mut() {
        object.insert("status".to_owned(), json!({ "conditions": approved }));
    }
    let path = format!("{REQUESTS}/{name}");
    api.must(Method::PUT, &format!("{path}/approval"), Some(&object))
        .await?;
    signed(api, &path, &name).await
}

/// Waits for the certificate of an approved request.
async fn signed(api: &mut Api, path: &str, name: &str) -> Result<String> {
    for _ in 0..MAX_POLLS {
        let object = api.must(Method::GET, path, None).await?;
        if let Some(certificate) = object
            .pointer("/status/certificate")
            .and_then(Value::as_str)
        {
            let bytes = STANDARD
                .decode(certificate)
                .map_err(|e| Error::answer(path, &e.to_string()))?;
            return String::from_utf8(bytes).map_err(|e| Error::answer(path, &e.to_string()));
        }
        let conditions = object
            .pointer("/status/conditions")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        if let Some(failed) = conditions
            .iter()
            .find(|condition| condition["type"] == "Failed")
        {
            let message = failed["message"]
                .as_str()
                .unwrap_or("no reason given")
                .to_owned();
            return Err(Error::Refused {
                what: format!("to sign {name}"),
                status: 403,
                message,
            });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Err(Error::answer(
        path,
        "no certificate came; `kubectl describe csr` says where it stands",
    ))
}

fn section(text: &mut String, roots: &[Vec<u8>], client: &str, serving: &str) -> Result<()> {
    let root: String = roots
        .iter()
        .map(|root| master_ca::pem("CERTIFICATE", root))
        .collect();
    let written = write!(
        text,
        "\n# Made by `pratique issue`. Static: nothing about image or configuration is proven, nobody renews it.\n\
         [identity]\ncertificate = \"\"\"\n{client}\"\"\"\nserving_certificate = \"\"\"\n{serving}\"\"\"\nroots = \"\"\"\n{root}\"\"\"\n"
    );
    written.map_err(|_unwritable| Error::answer("the document", "no memory for it"))
}

fn wrapped(text: &mut String, spki: &[u8], key: &GeneratedKey) -> Result<()> {
    let fault = |why: &str| {
        Error::input(
            "--ek",
            why,
            "give an RSA-2048, ECC P-256 or ECC P-384 endorsement key",
        )
    };
    let ek = template::ek_of_spki(spki)
        .ok_or_else(|| fault("not an endorsement key of a TCG template"))?;
    let wrapped =
        duplicate(&ek, &key.secret, &mut rand_core::OsRng).map_err(|e| fault(&e.to_string()))?;
    let hash = Digest::of(spki).to_text();
    let [public, private, seed] =
        [&wrapped.public, &wrapped.private, &wrapped.seed].map(|part| STANDARD.encode(part));
    let written = write!(
        text,
        "ek = \"{hash}\"\npublic = \"{public}\"\nprivate = \"{private}\"\nseed = \"{seed}\"\n"
    );
    written.map_err(|_unwritable| Error::answer("the document", "no memory for it"))
}

fn plaintext(text: &mut String, key: &GeneratedKey) -> Result<()> {
    let pem = key
        .secret
        .to_pkcs8_pem(LineEnding::LF)
        .map_err(|e| Error::answer("the key", &e.to_string()))?;
    // One growth, so that no copy of the key stays behind.
    text.reserve_exact(pem.len() + 64);
    let written = write!(
        text,
        "insecure_plaintext_key = true\nkey = \"\"\"\n{}\"\"\"\n",
        pem.as_str()
    );
    files::tell("WARNING: the document holds the node's private key in the clear");
    written.map_err(|_unwritable| Error::answer("the document", "no memory for it"))
}

fn check(text: &str) -> Result<()> {
    config_model::parse(text.as_bytes(), "the made document")
        .map(drop)
        .map_err(|faults| Error::Faults(faults.to_string()))
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_machine_that_finds_its_master_can_be_static_too() {
        let pin = format!("sha256:{}", "0a".repeat(32));
        let machine = "version = 1\n[machine]\nname = \"w\"\n";
        let uri = "http://d:80/v1/clusters/0123456789abcdef0123456789abcdef";
        let discovery = format!("{machine}[discovery]\nuris = [\"{uri}\"]\npins = [\"{pin}\"]\n");
        let master =
            format!("{machine}[master]\nendpoints = [\"https://m:6443\"]\nca_pins = [\"{pin}\"]\n");
        let founds = format!("{machine}[cluster]\nname = \"lab\"\nadmin_key = \"{pin}\"\n");
        let of = |text: &str, name: &str| {
            fits(text, "w.toml".to_owned(), name).map_err(|error| error.to_string())
        };
        assert_eq!((of(&discovery, "w"), of(&master, "w")), (Ok(()), Ok(())));
        assert!(of(&discovery, "v").unwrap_err().contains("machine.name"));
        assert!(of(&founds, "w").unwrap_err().contains("founds"));
    }
}
