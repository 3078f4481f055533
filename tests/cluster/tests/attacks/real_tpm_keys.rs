//! Keys that the owner of a machine makes in its real TPM: unrestricted, loaded from outside, of
//! another hierarchy or policy; declared truthfully, or as the protocol requires them. With the
//! agent's own keys the same exchange is accepted.

use crate::lab::{Lab, Outcome};
use crate::real_tpm;
use crate::real_tpm_evidence::{
    Said, assembled, greeting, honestly, join, named, requests, take_out,
};
use crate::seized_tpm::{Key, Seized, Signer, policy};
use agent_enroll::Logs;
use agent_tpm::{EndorsementKey, Tpm};
use config_protocol::{Code, prover};
use config_tpm::Digest;
use config_tpm::pcr::{NK_PCRS, QUOTE_PCRS};
use config_tpm::{Attributes, HashAlg, Public, template};
use std::collections::BTreeMap;
use tests_harness::swtpm::Swtpm;
use tests_machines::{EkKind, SoftMachine};
use tss_esapi::interface_types::resource_handles::Hierarchy;

/// The machine as its owner left it.
struct Machine {
    swtpm: Swtpm,
    ek: EndorsementKey,
    logs: Logs,
    pcrs: BTreeMap<u8, Digest>,
}

/// An attack with a seized TPM.
struct Plot {
    ak: Key,
    nk: Key,
    /// The claimed public areas of AK and NK.
    said: [Public; 2],
    /// Which key is certified.
    certified: Key,
    /// The bank that is quoted.
    bank: HashAlg,
}

impl Plot {
    /// The agent's own keys, with their true public areas.
    fn honest(tpm: &Seized, pcrs: &BTreeMap<u8, Digest>) -> Self {
        Self::of(tpm.ak(), tpm.nk(pcrs))
    }

    /// Keys with their true public areas.
    fn of(ak: Key, nk: Key) -> Self {
        let (said, certified) = ([ak.public.clone(), nk.public.clone()], nk.clone());
        Self {
            ak,
            nk,
            said,
            certified,
            bank: HashAlg::Sha256,
        }
    }

    /// The same, claimed to match the templates.
    fn with_lies(self, pcrs: &BTreeMap<u8, Digest>) -> Self {
        let claimed = |template: Public, key: &Key| Public {
            key: key.public.key.clone(),
            ..template
        };
        let said = [
            claimed(template::ak(), &self.ak),
            claimed(template::nk(pcrs), &self.nk),
        ];
        Self { said, ..self }
    }
}

type Mount = fn(&Seized, &BTreeMap<u8, Digest>) -> Plot;

fn unrestricted(tpm: &Seized, pcrs: &BTreeMap<u8, Digest>) -> Plot {
    let mut template = template::ak();
    template.attributes = Attributes(template.attributes.0 & !Attributes::RESTRICTED.0);
    Plot::of(
        tpm.make(Hierarchy::Endorsement, &template, &[]),
        tpm.nk(pcrs),
    )
}

fn ak_from_outside(tpm: &Seized, pcrs: &BTreeMap<u8, Digest>) -> Plot {
    Plot::of(
        tpm.bring(&SoftMachine::new("brought along", EkKind::P256).ak),
        tpm.nk(pcrs),
    )
}

fn nk_from_outside(tpm: &Seized, _pcrs: &BTreeMap<u8, Digest>) -> Plot {
    Plot::of(
        tpm.ak(),
        tpm.bring(&SoftMachine::new("brought along", EkKind::P256).nk),
    )
}

/// Each attack: its code, whether the machine has proved itself by then, and the keys.
const ATTACKS: [(Code, bool, &str, Mount); 11] = [
    (
        Code::AkUnrestricted,
        false,
        "an AK that may sign anything",
        unrestricted,
    ),
    (
        Code::CredentialNotActivated,
        false,
        "the same, claimed to be restricted",
        |tpm, pcrs| unrestricted(tpm, pcrs).with_lies(pcrs),
    ),
    (
        Code::AkExternal,
        false,
        "an AK from outside",
        ak_from_outside,
    ),
    (
        Code::CredentialNotActivated,
        false,
        "the same, claimed to be made inside",
        |tpm, pcrs| ak_from_outside(tpm, pcrs).with_lies(pcrs),
    ),
    (
        Code::AkHierarchy,
        true,
        "an AK of the owner's hierarchy",
        |tpm, pcrs| {
            Plot::of(
                tpm.make(Hierarchy::Owner, &template::ak(), &[]),
                tpm.nk(pcrs),
            )
        },
    ),
    (
        Code::NkExternal,
        false,
        "an NK from outside",
        nk_from_outside,
    ),
    (
        Code::CertifyOtherKey,
        true,
        "the same, claimed to be made inside",
        |tpm, pcrs| nk_from_outside(tpm, pcrs).with_lies(pcrs),
    ),
    (
        Code::NkAuthPolicy,
        true,
        "an NK that wants one register alone",
        |tpm, pcrs| {
            let mut template = template::nk(pcrs);
            template.auth_policy = policy(&[7], pcrs);
            Plot::of(tpm.ak(), tpm.make(Hierarchy::Null, &template, &[7]))
        },
    ),
    (
        Code::NkHierarchy,
        true,
        "an NK that outlives the boot",
        |tpm, pcrs| {
            Plot::of(
                tpm.ak(),
                tpm.make(Hierarchy::Owner, &template::nk(pcrs), NK_PCRS),
            )
        },
    ),
    (
        Code::CertifyOtherKey,
        true,
        "a certification of the AK itself",
        |tpm, pcrs| {
            let honest = Plot::honest(tpm, pcrs);
            Plot {
                certified: honest.ak.clone(),
                ..honest
            }
        },
    ),
    (
        Code::PcrBank,
        true,
        "a quote of the SHA-1 bank",
        |tpm, pcrs| Plot {
            bank: HashAlg::Sha1,
            ..Plot::honest(tpm, pcrs)
        },
    ),
];

impl Machine {
    /// Boots; the agent's hold on the TPM ends with this.
    fn boot(lab: &Lab, swtpm: Swtpm, dir: &std::path::Path) -> Self {
        let tpm = Tpm::open(&swtpm.tcti()).unwrap();
        let logs = real_tpm::boot(&tpm, &lab.image, dir);
        let ek = tpm.endorsement_keys().unwrap().remove(0);
        let pcrs = tpm.read_pcrs(QUOTE_PCRS).unwrap();
        drop(tpm);
        Self {
            swtpm,
            ek,
            logs,
            pcrs,
        }
    }

    async fn join(&self, lab: &Lab, node: &str, mount: Mount) -> Outcome {
        let tpm = Seized::open(&self.swtpm.tcti());
        let plot = mount(&tpm, &self.pcrs);
        let (ek, [ak, nk]) = (&self.ek, plot.said.each_ref().map(Public::to_bytes));
        let keys = prover::keys(&ek.public, &ak, &nk, ek.certificate.as_deref()).unwrap();
        let greeting = greeting(keys, requests(&Signer::new(&tpm, &plot.nk), node), node);
        join(lab, greeting, |hello, challenge, channel| {
            assembled(hello, challenge, channel, &self.logs, |question| {
                let secret = tpm.activate(&plot.ak, &challenge.credential);
                assert_eq!(
                    secret.is_some(),
                    plot.said[0] == plot.ak.public,
                    "the TPM opens it for what the key is"
                );
                let quote = tpm.quote(&plot.ak, question, plot.bank);
                let certify = tpm.certify(&plot.ak, &plot.certified, question);
                Said {
                    secret,
                    quote,
                    certify,
                    pcrs: self.pcrs.clone(),
                }
            })
        })
        .await
    }
}

pub(crate) async fn keys_that_a_tpms_owner_makes_are_refused() {
    let (dir, swtpm) = (
        tempfile::tempdir().unwrap(),
        Swtpm::with_banks("sha1,sha256"),
    );
    let lab = Lab::start_with(&swtpm.issuer_pem(), "30m").await;
    let machine = Machine::boot(&lab, swtpm, dir.path());
    for (number, (code, proven, what, mount)) in ATTACKS.into_iter().enumerate() {
        let node = named(number, what);
        real_tpm::list(&lab, &Tpm::open(&machine.swtpm.tcti()).unwrap(), &node).await;
        honestly(&lab, || machine.join(&lab, &node, Plot::honest)).await;
        lab.refused(&machine.join(&lab, &node, mount).await, code, proven)
            .await;
        take_out(&lab, &node).await;
    }
    lab.site.stop();
}
