"""An emulator of two machines that waits to be killed, or ends with its input: state folder, isolation, net, public key."""

import asyncio
import sys
from pathlib import Path

from trainyard.emulators.aliyun.api.call import MachineWish
from trainyard.emulators.aliyun.machines import Isolation, Machines


async def main(state, isolation, net, key):
    machines = Machines(Path(state), isolation=Isolation(isolation))
    wishes = [
        MachineWish(
            instance_id=f"i-test{number}",
            address=f"{net}.{2 * number + 1}",
            public_address=f"{net}.{2 * number + 2}",
            hostname=f"task{number}-{net}",
            running=True,
            authorized_keys=(key,),
            password="",
            user_data=b"",
            boot=1,
        )
        for number in range(2)
    ]
    await machines.reconcile(wishes)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await machines.reconcile([])
    await machines.close()


asyncio.run(main(*sys.argv[1:]))
