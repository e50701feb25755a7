"""The driver of an RLJob, in the pod that it shares with the Ray head."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import ray
import structlog
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config import load_incluster_config
from pydantic import ValidationError

from longboat_crds.incarnations import UNANSWERED
from longboat_crds.job import RLJobSpec
from longboat_crds.reasons import Reason
from longboat_crds.status import Problem, Training, TrainingState
from longboat_runtime.checkpoint.store import incarnations
from longboat_runtime.contact import Contact
from longboat_runtime.driver.broker import Superseded
from longboat_runtime.driver.job import Job
from longboat_runtime.driver.kubernetes_broker import KubernetesBroker
from longboat_runtime.driver.main import RAY_NAMESPACE, Ending, drive
from longboat_runtime.driver.own_job import OwnJob
from longboat_runtime.driver.status import DriverStatus
from longboat_runtime.metrics.prometheus import Prometheus
from longboat_runtime.tracking.trackers import SECRETS

log = structlog.get_logger()

METRICS_PORT = 6392
# How long the first start in a pod waits for the API server, in seconds.
ANSWER_SECONDS = 45.0
CHECKPOINT = Path("/checkpoint")


class Unanswered(Exception):
    """The driver got no answer from the API server; the message says why."""


async def drive_in_pod(
    name: str, namespace: str, head: str, after_failure: str | None = None, contact: Contact | None = None
) -> Ending:
    """Runs the job from its newest checkpoint; `head` is the Ray head's host:port.

    `after_failure` says how the previous start failed, if that was in the same container; `contact` is the pod's.

    Raises:
        Unanswered: the API server gave no answer within `ANSWER_SECONDS`. No driver of this pod has had one, or ended for this cause.
        Exception: any other error, which the next start of the process may overcome.
    """
    contact = contact or Contact()
    configuration = Configuration()
    load_incluster_config(configuration)
    broker = KubernetesBroker(OwnJob(configuration, namespace, name), time.monotonic, after_failure)
    try:
        job_object, number = await _begun(broker, contact)
        log.info("driver starts", job=f"{namespace}/{name}", incarnation=number)
        try:
            spec = RLJobSpec.model_validate(job_object["spec"])
        except ValidationError as error:
            return await _refuse(broker, number, error)
        ray.init(address=head, namespace=RAY_NAMESPACE, log_to_driver=False)
        job = Job(job_object["metadata"]["uid"], spec, CHECKPOINT, number, name)
        ending, _ = await drive(job, broker, [Prometheus(METRICS_PORT)], secrets=SECRETS)
    except Superseded as error:
        log.warning("this driver has been superseded", error=str(error))
        return Ending.SUPERSEDED
    finally:
        await broker.close()
    return ending


async def _begun(broker: KubernetesBroker, contact: Contact) -> tuple[dict[str, Any], int]:
    """Returns the job and the number of this start; raises as `drive_in_pod` does.

    Rule: without an answer, the first start in a pod ends, so that its termination message says why: the operator has no right to read
    logs. Later starts wait. A new cause ends one more start, but no cause ends two, since the kubelet delays each restart longer.
    """

    async def begin() -> tuple[dict[str, Any], int]:
        job = await broker.start()
        # An API server that was restored may grant numbers again that files on the claim have already.
        return job, await broker.incarnation(max(await asyncio.to_thread(incarnations, CHECKPOINT), default=0) + 1)

    start, stored = asyncio.create_task(begin()), asyncio.create_task(broker.request_stored.wait())
    try:
        while not contact.answered:
            done, _ = await asyncio.wait((start, stored), timeout=ANSWER_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if broker.request_stored.is_set():
                contact.note_answer()
            elif done:
                break
            elif broker.last_error and not contact.has_ended_for(broker.last_error):
                contact.note_end(broker.last_error)
                raise Unanswered(f"{UNANSWERED} within {ANSWER_SECONDS:g} s: {broker.last_error}")
        return await start
    finally:
        for task in (start, stored):
            task.cancel()


async def _refuse(broker: KubernetesBroker, number: int, error: ValidationError) -> Ending:
    """Fails a job whose spec this version can't read."""
    first: Any = error.errors()[0]
    field = ".".join(("spec", *map(str, first["loc"])))
    message = (
        f"{first['msg']}: this version of the runtime doesn't understand the field. Use one that matches the CRDs."
    )
    broker.publish(
        DriverStatus(
            Training(incarnation=number, state=TrainingState.FAILED),
            problem=Problem(reason=Reason.SPEC_INVALID, field=field, message=message, fatal=True),
        )
    )
    await broker.flush()
    return Ending.FAILED
